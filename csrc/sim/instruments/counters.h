// The calls, failures and modelled cost of every driver function.
//
// Guarded by the machine's lock. The costs are medians measured on an H100, or those of a similar
// call; they model the cost on that card, not the cost here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ferro::sim {

using FunctionId = std::size_t;

// The same id for the same name for the life of the process. Takes a lock of its own.
FunctionId function_id(std::string_view name);
std::string_view function_name(FunctionId id);

struct CallCount {
  std::uint64_t calls = 0;
  std::uint64_t failures = 0;
  std::uint64_t bytes = 0;
  double microseconds = 0;
};

class Counters {
 public:
  // Counts one call of `bytes` bytes on `handles` handles. Returns its cost in microseconds.
  double add(FunctionId function, std::size_t bytes, std::size_t handles, bool failed);
  CallCount of(std::string_view name) const;
  void reset() { counts_.clear(); }
  // {"cuMemMap": {"calls": 1, "failures": 0, "bytes": 2097152, "microseconds": 0.6}, ...}
  std::string to_json() const;

  // The first 100,000 calls since tracing was switched on: "cuMemMap 2097152".
  void set_trace(bool on);
  std::vector<std::string> trace() const { return trace_; }

 private:
  std::vector<CallCount> counts_;
  bool tracing_ = false;
  std::vector<std::string> trace_;
};

}  // namespace ferro::sim
