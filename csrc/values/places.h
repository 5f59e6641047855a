// What the simulated GPU could not do and the program met: places that read uncomputed values, and
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

// The program took values that nothing computed, in an operator. The first time a place does so it is
// said on stderr.
void note_read(const std::string& operation);
// Keeps what an operator threw if it is about a library of NVIDIA's.
void note_failure(const std::string& operation, const std::string& message);

std::vector<Read> reads();
std::vector<Failure> failures();

}  // namespace ferro::values
