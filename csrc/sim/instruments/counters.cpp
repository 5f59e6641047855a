#include "sim/instruments/counters.h"

#include "ferro/base/bytes.h"

#include <array>
#include <cstdio>
#include <deque>
#include <mutex>

namespace ferro::sim {
namespace {

struct Cost {
  std::string_view name;
  double per_call = 0;
  double per_mib = 0;
  double per_handle = 0;
};

// Microseconds.
constexpr std::array kCosts = {
    Cost{"cuMemAddressReserve", 2},
    Cost{"cuMemCreate", 7.5, 0.006},
    Cost{"cuMemMap", 0.6},
    Cost{"cuMemSetAccess", 0, 0, 20},
    Cost{"cuMemUnmap", 0, 0, 14},
    Cost{"cuMemRelease", 9, 0.267},
    Cost{"cuMemExportToShareableHandle", 97},
    Cost{"cuMemImportFromShareableHandle", 17},
    Cost{"cuMemAlloc_v2", 30, 0.058},
    Cost{"cuMemFree_v2", 26, 0.285},
    Cost{"cuMemAllocAsync", 0.35},
    Cost{"cuMemAllocFromPoolAsync", 0.35},
    Cost{"cuMemFreeAsync", 0.35},
    Cost{"cuEventCreate", 0.17},
    Cost{"cuEventRecord", 0.24},
    Cost{"cuEventRecordWithFlags", 0.24},
    Cost{"cuCtxRecordEvent", 0.26},
    Cost{"cuEventQuery", 0.24},
    Cost{"cuStreamWaitEvent", 0.19},
    Cost{"cuStreamIsCapturing", 0.055},
    Cost{"cuLaunchKernel", 3},
    Cost{"cuLaunchKernelEx", 3},
    // Measured on an H200 as the cost of a second fill per value.
    Cost{"cuMemsetD8Async", 1},
    Cost{"cuMemsetD16Async", 1},
    Cost{"cuMemsetD32Async", 1},
    Cost{"cuStreamWriteValue64_v2", 1},
    // Not measured: taken from the launch of a kernel, and from the query of an event.
    Cost{"cuLaunchCooperativeKernel", 3},
    Cost{"cuGraphLaunch", 3},
    Cost{"cuLaunchHostFunc", 3},
    Cost{"cuMemcpyAsync", 3},
    Cost{"cuMemcpyDtoDAsync_v2", 3},
    Cost{"cuMemcpyDtoHAsync_v2", 3},
    Cost{"cuMemcpyHtoDAsync_v2", 3},
    Cost{"cuMemcpyPeerAsync", 3},
    Cost{"cuMemcpy2DAsync_v2", 3},
    Cost{"cuMemcpyDtoH_v2", 3},
    Cost{"cuMemcpyHtoD_v2", 3},
    Cost{"cuStreamQuery", 0.24},
    Cost{"cuEventSynchronize", 0.24},
    Cost{"cuStreamSynchronize", 0.24},
    Cost{"cuCtxSynchronize", 0.24},
};

struct Names {
  std::mutex mutex;
  // A deque, because callers keep views of its elements.
  std::deque<std::string> names;
};

// Never destroyed: calls may come from static destructors.
Names& names() {
  static Names* const instance = new Names;
  return *instance;
}

constexpr std::size_t kTraceLimit = 100000;

}  // namespace

FunctionId function_id(std::string_view name) {
  Names& all = names();
  const std::lock_guard guard(all.mutex);
  for (FunctionId id = 0; id < all.names.size(); ++id) {
    if (all.names[id] == name) {
      return id;
    }
  }
  all.names.emplace_back(name);
  return all.names.size() - 1;
}

std::string_view function_name(FunctionId id) {
  Names& all = names();
  const std::lock_guard guard(all.mutex);
  return all.names.at(id);
}

namespace {

// The cost row of each function id, looked up once.
const Cost& cost_of(FunctionId id) {
  static const Cost kFree{};
  // Never destroyed: PyTorch destroys events while the process ends.
  static auto& rows = *new std::vector<const Cost*>();
  while (rows.size() <= id) {
    const std::string_view name = function_name(rows.size());
    const Cost* found = &kFree;
    for (const Cost& cost : kCosts) {
      if (cost.name == name) {
        found = &cost;
      }
    }
    rows.push_back(found);
  }
  return *rows[id];
}

}  // namespace

double Counters::add(FunctionId function, std::size_t bytes, std::size_t handles, bool failed) {
  if (function >= counts_.size()) {
    counts_.resize(function + 1);
  }
  const Cost& cost = cost_of(function);
  CallCount& count = counts_[function];
  ++count.calls;
  count.failures += failed ? 1 : 0;
  count.bytes += bytes;
  const double microseconds =
      cost.per_call + cost.per_mib * static_cast<double>(bytes) / static_cast<double>(kMiB) +
      cost.per_handle * static_cast<double>(handles);
  count.microseconds += microseconds;
  if (tracing_ && trace_.size() < kTraceLimit) {
    trace_.push_back(std::string(function_name(function)) + " " + std::to_string(bytes) +
                     (failed ? " failed" : ""));
  }
  return microseconds;
}

CallCount Counters::of(std::string_view name) const {
  const FunctionId id = function_id(name);
  return id < counts_.size() ? counts_[id] : CallCount{};
}

std::string Counters::to_json() const {
  std::string text = "{";
  for (FunctionId id = 0; id < counts_.size(); ++id) {
    const CallCount& count = counts_[id];
    if (count.calls == 0) {
      continue;
    }
    char figures[160];
    std::snprintf(figures, sizeof(figures),
                  R"({"calls": %llu, "failures": %llu, "bytes": %llu, "microseconds": %.3f})",
                  static_cast<unsigned long long>(count.calls),
                  static_cast<unsigned long long>(count.failures),
                  static_cast<unsigned long long>(count.bytes), count.microseconds);
    text += (text.size() > 1 ? ", \"" : "\"") + std::string(function_name(id)) + "\": " + figures;
  }
  return text + "}";
}

void Counters::set_trace(bool on) {
  tracing_ = on;
  trace_.clear();
}

}  // namespace ferro::sim
