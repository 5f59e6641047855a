// Fuzzes a device's memory, its heaps, pools and checkpoints against a naive model. A failure
// prints the program as C++ for tests/cpp/unit/device_model_test.cpp.
#include "model/device_model.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    ferro::testing::run_program(ferro::testing::decode(data, size));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
  return 0;
}
