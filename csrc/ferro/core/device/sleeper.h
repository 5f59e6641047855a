// Memory that sleeps: it returns to the driver, while its addresses stay and with them tensors,
// graphs and pools. Its contents wait in host memory, or are dropped. When it wakes, other memory is
// behind the same addresses.
//
// Memory sleeps by whole handles: those that have memory of the filter in use, and no other. What a
// graph replays on but does not keep sleeps without contents, when all that is in use of its pool is
// of the filter or asleep, and wakes when some is of the filter. Nothing may use memory that is
// asleep, but it may be freed. Statistics of memory in use count it; those of memory held do not.
//
// Under the climb lock of the device; requests that need pages wait meanwhile. The host waits for
// the work that the device has received, and for copies.
//
// Invariant: saved_ has a handle that is asleep exactly if contents of it were kept.
#pragma once

#include "ferro/core/device/device_parts.h"
#include "ferro/core/device/reclaimer.h"
#include "ferro/core/heap/heap.h"
#include "ferro/core/pages/host_store.h"
#include "ferro/core/types/sleep.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

namespace ferro {

// kBusy: a capture runs, or the caller is a callback of a request. kNoHostMemory: the host lacks
// memory for the contents. kStays: some memory of the filter cannot sleep, and the caller wanted all
// of it. kOutOfMemory: the device lacks memory to wake it.
enum class [[nodiscard]] SleepResult{kOk, kBusy, kNoHostMemory, kStays, kOutOfMemory};

struct SleepOutcome {
  SleepResult result = SleepResult::kOk;
  std::size_t bytes = 0;          // of memory that fell asleep or woke
  std::size_t saved_bytes = 0;    // of contents, to the host or from it
  std::size_t missing_bytes = 0;  // kOutOfMemory: on the device. kNoHostMemory: on the host
  StayingBytes staying;
};

class Sleeper {
 public:
  Sleeper(const DeviceParts& parts, Reclaimer& reclaimer)
      : parts_(parts), reclaimer_(reclaimer), host_(parts.driver) {}

  enum class Contents : std::uint8_t { kKeep, kDrop };
  enum class Want : std::uint8_t { kAll, kWhatCanSleep };
  // On another result than kOk nothing sleeps that did not before. DriverError: the same, or some of
  // it is asleep, with its contents.
  SleepOutcome sleep(const SleepFilter& which, Contents contents, Want want);
  // The contents are back when it returns; dropped ones are undefined. On another result than kOk,
  // and when it throws DriverError, nothing has woken.
  SleepOutcome wake(const SleepFilter& which);

  // Handles that are asleep and whose memory was freed need none any more: their addresses and
  // contents go.
  void forget_freed();

  // Bytes of the device that waking everything would take.
  std::size_t asleep_bytes() const;
  HostStore& host() { return host_; }

 private:
  static constexpr std::size_t kLargestRun = std::size_t{512} << 20;  // bytes

  // Contents of a part of a handle.
  struct Saved {
    DevicePtr at{};
    HostStore::Piece piece;
  };
  using Handle = Heap::Asleep;
  // Adjacent handles of one heap, up to kLargestRun or one handle. While one run is copied, the
  // driver maps or unmaps another.
  struct Run {
    Heap* heap = nullptr;
    DevicePtr begin{};
    std::size_t pages = 0;
    std::vector<Handle> parts;
    bool is_mapped = false;
  };

  bool is_busy() const { return parts_.captures.load() != 0 || parts_.observer.is_within_climb(); }
  std::size_t page_bytes() const { return parts_.store.page_bytes(); }
  static void add(std::vector<Run>& runs, Heap* heap, Handle handle, std::size_t page_bytes);
  // Adds the pools of graphs whose memory in use is of the filter, all that is awake or some. `with`
  // gets the tags of the memory in use with kAll, and names them with kSome.
  enum class Share : std::uint8_t { kAll, kSome };
  using TagsOfPools = std::map<PoolId, std::set<BlockTag>>;
  SleepFilter with_scratch_of(const SleepFilter& which, Share share, TagsOfPools* with);
  void wait_for_work();
  std::vector<Run> fall_asleep(const SleepFilter& which, StayingBytes& staying);
  bool begin_to_save(const std::vector<Run>& runs, SleepOutcome& outcome);
  void restore(const Run& run);
  void undo(std::span<const Run> runs);
  void give_up(const Run& run, SleepOutcome& outcome);
  EventId event(std::size_t number);
  bool back_all(std::vector<Run>& runs, const SleepFilter& which, SleepOutcome& outcome);
  bool create(Run& run);
  void put_back(std::vector<Run>& runs);
  void begin_to_load(const Run& run, SleepOutcome& outcome);
  void forget_saved(DevicePtr begin);
  // Some memory of the pool.
  bool is_asleep(const PoolId& id) const;

  const DeviceParts& parts_;
  Reclaimer& reclaimer_;
  HostStore host_;
  // The tags of memory in use with which scratch fell asleep, by pool. Any of them wakes it, also if
  // that memory is freed by then. `forget_freed` removes pools of which nothing is asleep.
  TagsOfPools slept_with_;
  std::map<DevicePtr, std::vector<Saved>> saved_;  // by the first address of the handle
  std::vector<EventId> events_;                    // after the copies of each run
};

}  // namespace ferro
