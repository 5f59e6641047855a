// The simulated driver's table with a counter, a trap and a ledger. It counts every call whose
// failure the allocator can see, fails a chosen call with a chosen error, and records successful
// calls in the ledger.
//
// There is one table for the process. Counting is thread-safe; setting trap, ledger and watcher is
// not.
#pragma once

#include "ferro/driver/cuda_api.h"
#include "sim/driver_api.h"
#include "support/driver_ledger.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>

namespace ferro::testing {

class FaultyApi {
 public:
  // The table for a Driver.
  static const CudaApi& table() {
    static const CudaApi relayed = make_table();
    return relayed;
  }

  // Restarts the count and removes the trap.
  static void reset() { fail_at(0, CUDA_SUCCESS); }
  // Makes the `call`-th call from now fail, counted from 1; 0 removes the trap.
  static void fail_at(std::uint64_t call, CUresult result) { fail_only("", call, result); }
  // Does the same, but counts only calls of one function: "cuMemMap".
  static void fail_only(std::string symbol, std::uint64_t call, CUresult result) {
    // A thread of the allocator may make a call while a fixture without a trap resets it.
    if (symbol_ != symbol) {
      symbol_ = std::move(symbol);
    }
    result_ = result;
    trap_ = call;
    calls_ = 0;
    failed_ = "";
  }
  static std::uint64_t calls() { return calls_; }
  // The symbol of the failed call; empty if none has failed.
  static const char* failed() { return failed_; }
  // Sets the ledger of successful calls; null removes it.
  static void keep(DriverLedger* ledger) { ledger_ = ledger; }
  // Replaces the record of points of the context, to plant a mistake; null restores the driver's.
  static void plant_record(CUresult (*record)(CUcontext, CUevent)) { record_ = record; }
  // From now on ranges of addresses are reserved one after another from here, so that no run differs
  // from another one by their order; 0: the driver chooses.
  static void choose_addresses(CUdeviceptr first) { next_address_ = first; }
  // Sets a function that is called with the symbol before each call, in its thread; null removes
  // it.
  static void set_watcher(std::function<void(const char*)> watcher) {
    watcher_ = std::move(watcher);
  }

 private:
  template <auto kMember, const char* kSymbol, typename Function>
  struct Relay;
  template <auto kMember, const char* kSymbol, typename... Args>
  struct Relay<kMember, kSymbol, CUresult (*)(Args...)> {
    static CUresult call(Args... args) {
      if (watcher_) {
        watcher_(kSymbol);
      }
      if (ledger_ != nullptr) {
        (name(args), ...);
      }
      if ((symbol_.empty() || symbol_ == kSymbol) && ++calls_ == trap_) {
        failed_ = kSymbol;
        return result_;
      }
      if constexpr (std::is_same_v<decltype(kMember), decltype(&CudaApi::ctx_record_event)>) {
        if (kMember == &CudaApi::ctx_record_event && record_ != nullptr) {
          return record_(args...);
        }
      }
      if constexpr (std::is_same_v<decltype(kMember), decltype(&CudaApi::mem_address_reserve)>) {
        if (next_address_ != 0) {
          choose_address(args...);
        }
      }
      const CUresult result = (sim::sim_cuda_api().*kMember)(args...);
      if (ledger_ != nullptr && result == CUDA_SUCCESS) {
        ledger_->after(DriverCall<kMember>{}, args...);
      }
      return result;
    }
    static void choose_address(CUdeviceptr*, std::size_t bytes, std::size_t alignment,
                               CUdeviceptr& wanted, unsigned long long) {
      const CUdeviceptr aligned = std::max(CUdeviceptr{alignment}, kAlignment);
      wanted = (next_address_ + aligned - 1) / aligned * aligned;
      next_address_ = wanted + bytes;
    }
    template <typename Argument>
    static void name(Argument argument) {
      if constexpr (std::is_same_v<Argument, CUstream>) {
        ledger_->before(kSymbol, argument);
      }
    }
  };

#define FERRO_TESTING_SYMBOL(member, symbol) static constexpr char k_##member[] = #symbol;
  FERRO_CUDA_API(FERRO_TESTING_SYMBOL)
  FERRO_CUDA_API_OPTIONAL(FERRO_TESTING_SYMBOL)
#undef FERRO_TESTING_SYMBOL

  static CudaApi make_table() {
    CudaApi table;
#define FERRO_TESTING_RELAY(member, symbol) \
  table.member = &Relay<&CudaApi::member, k_##member, decltype(CudaApi::member)>::call;
    FERRO_CUDA_API(FERRO_TESTING_RELAY)
    FERRO_CUDA_API_OPTIONAL(FERRO_TESTING_RELAY)
#undef FERRO_TESTING_RELAY
    // The allocator does not check the results of these calls, so traps there would show nothing.
    const CudaApi& plain = sim::sim_cuda_api();
    table.get_error_name = plain.get_error_name;
    table.ctx_get_current = plain.ctx_get_current;
    table.thread_exchange_capture_mode = plain.thread_exchange_capture_mode;
    // The driver ends a list of parameters with an error, so a trap there would show nothing.
    table.func_get_param_info = nullptr;
    return table;
  }

  static constexpr CUdeviceptr kAlignment = CUdeviceptr{2} << 20;

  static inline std::string symbol_;
  static inline std::atomic<CUresult> result_{CUDA_SUCCESS};
  static inline std::atomic<std::uint64_t> trap_{0};
  static inline std::atomic<std::uint64_t> calls_{0};
  static inline std::atomic<const char*> failed_{""};
  static inline DriverLedger* ledger_ = nullptr;
  static inline CUdeviceptr next_address_ = 0;
  static inline std::function<void(const char*)> watcher_;
  static inline CUresult (*record_)(CUcontext, CUevent) = nullptr;
};

}  // namespace ferro::testing
