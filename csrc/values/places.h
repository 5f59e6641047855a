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

struct Failure {
  std::string library;
  std::string operation;
  std::string message;  // its first line
};

// Records that an operator read uncomputed values for the program. Prints each place once to
// stderr.
void note_read(const std::string& operation);
// Records an operator's exception if it names a library of NVIDIA.
void note_failure(const std::string& operation, const std::string& message);

std::vector<Read> reads();
std::vector<Failure> failures();

}  // namespace ferro::values
