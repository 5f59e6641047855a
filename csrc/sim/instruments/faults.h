// Planned failures of driver functions.
//
// Guarded by the machine's lock. A planned failure has no effect but its result: the function does
// nothing else.
#pragma once

#include "sim/instruments/counters.h"

#include <cuda.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ferro::sim {

struct Fault {
  enum class When : std::uint8_t {
    kCall,        // the `value`-th call from now, counted from 1
    kAfterCalls,  // every call after the first `value` from now
    kBytes,       // every call that asks for at least `value` bytes
  };
  // The exported symbol, with or without its version suffix: "cuMemAlloc_v2" or "cuMemAlloc".
  std::string function;
  When when = When::kCall;
  std::uint64_t value = 1;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
};

class FaultPlan {
 public:
  void add(Fault fault) { entries_.push_back({std::move(fault), 0}); }
  void clear() { entries_.clear(); }
  // Counts a call. Returns the error that it must fail with, if any.
  std::optional<CUresult> check(FunctionId function, std::size_t bytes);
  std::uint64_t injected() const { return injected_; }

 private:
  struct Entry {
    Fault fault;
    std::uint64_t calls;
  };
  std::vector<Entry> entries_;
  std::uint64_t injected_ = 0;
};

}  // namespace ferro::sim
