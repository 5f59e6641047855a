// Fuzzes the page store against a naive model. A failure prints the program as C++ for
// tests/cpp/unit/store_model_test.cpp.
#include "support/store_model.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    ferro::testing::run_store_program(ferro::testing::decode_store(data, size),
                                      ferro::testing::handle_rules(size == 0 ? 0 : data[0]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
  return 0;
}
