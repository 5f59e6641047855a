// The limits of the simulated GPU that the program met: places that read uncomputed values, and
// failures of libraries.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ferro::values {

struct Read {
  std::string place;  // "train.py:12", or empty outside of Python
  std::string operation;
  std::uint64_t count = 0;
};

// A size that depended on uncomputed values.
struct AssumedSize {
  std::string place;
  std::string operation;
  std::int64_t assumed = 0;  // the largest that was assumed there
  std::int64_t most = 0;     // the largest that was possible there
  std::uint64_t count = 0;
};

struct Failure {
  std::string library;
  std::string operation;
  std::string message;  // its first line
};

// Records that an operator read uncomputed values for the program. Prints each place once to
// stderr.
void note_read(const std::string& operation);
// Records the size that was assumed for a result, of `most` that are possible.
void note_size(const std::string& operation, std::int64_t assumed, std::int64_t most);
// Records an operator's exception if it names a library of NVIDIA.
void note_failure(const std::string& operation, const std::string& message);

std::vector<Read> reads();
std::vector<AssumedSize> sizes();
std::vector<Failure> failures();

}  // namespace ferro::values
