// Tracks, by the driver calls of the allocator, what it currently has from the driver: the handle
// behind each address, exported handles, events and addresses.
//
// Thread-safe.
#pragma once

#include "ferro/driver/cuda_api.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

namespace ferro::testing {

// One function of the table, by its member.
template <auto kMember>
struct DriverCall {};

class DriverLedger {
 public:
  using Handle = CUmemGenericAllocationHandle;
  struct Mapping {
    std::size_t bytes;
    Handle handle;
  };
  struct Counts {
    std::size_t events = 0;
    std::size_t reservations = 0;
    std::size_t reserved_bytes = 0;
    std::size_t mappings = 0;
    std::size_t handles = 0;

    friend bool operator==(const Counts&, const Counts&) = default;
  };

  // From now on no call may name this stream.
  void lose(CUstream stream) {
    const std::lock_guard lock(mutex_);
    gone_.insert(stream);
  }
  // An exported handle that was unmapped may be mapped again only within the same step.
  void begin_step() {
    const std::lock_guard lock(mutex_);
    ++step_;
  }
  // The first violation of the rules; empty if there is none.
  std::string violation() const {
    const std::lock_guard lock(mutex_);
    return violation_;
  }

  Counts counts() const {
    const std::lock_guard lock(mutex_);
    Counts counts{events_.size(), reservations_.size(), 0, mappings_.size(), handles_.size()};
    for (const auto& [base, bytes] : reservations_) {
      counts.reserved_bytes += bytes;
    }
    return counts;
  }
  // 0 if nothing is mapped there.
  Handle handle_behind(std::uint64_t address) const {
    const std::lock_guard lock(mutex_);
    const auto found = around(address);
    return found != mappings_.end() ? found->second.handle : 0;
  }
  // The begin and the handle of the mapping around an address; 0 if nothing is mapped there.
  std::pair<std::uint64_t, Handle> mapping_behind(std::uint64_t address) const {
    const std::lock_guard lock(mutex_);
    const auto found = around(address);
    return found != mappings_.end() ? std::pair{std::uint64_t{found->first}, found->second.handle}
                                    : std::pair{std::uint64_t{0}, Handle{0}};
  }
  // Collects the handles behind a range, with the size of each.
  void collect_handles(std::uint64_t begin, std::size_t bytes,
                       std::map<Handle, std::size_t>& out) const {
    const std::lock_guard lock(mutex_);
    auto mapping = around(begin);
    if (mapping == mappings_.end()) {
      mapping = mappings_.lower_bound(begin);
    }
    for (; mapping != mappings_.end() && mapping->first < begin + bytes; ++mapping) {
      out[mapping->second.handle] = mapping->second.bytes;
    }
  }

  // FaultyApi calls these: before a call, for each stream that it names; and after a successful
  // call.
  void before(const char* symbol, CUstream stream) {
    const std::lock_guard lock(mutex_);
    if (gone_.contains(stream)) {
      violate(std::string(symbol) + " names a destroyed stream");
    }
  }
  template <auto kMember, typename... Args>
  void after(DriverCall<kMember>, Args...) {}
  void after(DriverCall<&CudaApi::mem_address_reserve>, CUdeviceptr* base, std::size_t bytes,
             std::size_t, CUdeviceptr, unsigned long long) {
    const std::lock_guard lock(mutex_);
    reservations_[*base] = bytes;
  }
  void after(DriverCall<&CudaApi::mem_address_free>, CUdeviceptr base, std::size_t) {
    const std::lock_guard lock(mutex_);
    reservations_.erase(base);
  }
  void after(DriverCall<&CudaApi::mem_create>, Handle* handle, std::size_t,
             const CUmemAllocationProp*, unsigned long long) {
    const std::lock_guard lock(mutex_);
    handles_.insert(*handle);
  }
  void after(DriverCall<&CudaApi::mem_release>, Handle handle) {
    const std::lock_guard lock(mutex_);
    handles_.erase(handle);
    exported_.erase(handle);
  }
  void after(DriverCall<&CudaApi::mem_map>, CUdeviceptr at, std::size_t bytes, std::size_t,
             Handle handle, unsigned long long) {
    const std::lock_guard lock(mutex_);
    mappings_[at] = {bytes, handle};
    const auto exported = exported_.find(handle);
    if (exported == exported_.end()) {
      return;
    }
    const auto place = exported->second.find(at);
    if (place == exported->second.end() || (place->second != 0 && place->second != step_)) {
      violate("a handle that was exported is mapped somewhere else or later again");
    }
  }
  void after(DriverCall<&CudaApi::mem_unmap>, CUdeviceptr at, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto end = mappings_.lower_bound(at + bytes);
    for (auto mapping = mappings_.lower_bound(at); mapping != end; ++mapping) {
      const auto exported = exported_.find(mapping->second.handle);
      if (exported != exported_.end()) {
        exported->second[mapping->first] = step_;
      }
    }
    mappings_.erase(mappings_.lower_bound(at), end);
  }
  void after(DriverCall<&CudaApi::mem_export>, void*, Handle handle, CUmemAllocationHandleType,
             unsigned long long) {
    const std::lock_guard lock(mutex_);
    auto& places = exported_[handle];
    for (const auto& [at, mapping] : mappings_) {
      if (mapping.handle == handle) {
        places[at] = 0;
      }
    }
  }
  void after(DriverCall<&CudaApi::stream_create>, CUstream* stream, unsigned) {
    gone_.erase(*stream);  // it reuses the handle of a destroyed one
  }
  void after(DriverCall<&CudaApi::event_create>, CUevent* event, unsigned) {
    const std::lock_guard lock(mutex_);
    events_.insert(*event);
  }
  void after(DriverCall<&CudaApi::event_destroy>, CUevent event) {
    const std::lock_guard lock(mutex_);
    events_.erase(event);
  }

 private:
  using Mappings = std::map<CUdeviceptr, Mapping>;

  void violate(const std::string& what) {
    if (violation_.empty()) {
      violation_ = what;
    }
  }
  Mappings::const_iterator around(std::uint64_t address) const {
    const auto after = mappings_.upper_bound(address);
    if (after == mappings_.begin()) {
      return mappings_.end();
    }
    const auto found = std::prev(after);
    return address < found->first + found->second.bytes ? found : mappings_.end();
  }

  mutable std::mutex mutex_;
  Mappings mappings_;
  std::set<Handle> handles_;
  // By handle: its addresses when it was exported, with the step in which it was unmapped, or 0.
  std::map<Handle, std::map<CUdeviceptr, std::uint64_t>> exported_;
  std::map<CUdeviceptr, std::size_t> reservations_;
  std::set<CUevent> events_;
  std::set<CUstream> gone_;
  std::uint64_t step_ = 1;
  std::string violation_;
};

}  // namespace ferro::testing
