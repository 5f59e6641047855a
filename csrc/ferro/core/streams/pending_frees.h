// Blocks that the program freed while other streams may still use them.
//
// The heap's lock guards it. A block waits in one of two ways:
//  - on events: one per stream that used it, recorded at the free. Each stream has its own queue,
//    so a slow stream delays only the blocks that it used;
//  - deferred: a stream that used it captures, and an event recorded then would become part of the
//    graph. If all uses and the heap's own stream are in one capture, the block is ready as soon as
//    the graph orders that stream's next work after the uses. Otherwise the end of the capture
//    joins the uses inside it, and the other uses get events.
//
// Invariant: count() == blocks on events + deferred blocks; a block's `extra->events` == its
// entries in the queues, and is 0 exactly when it is deferred; bytes_on_events() == the sizes of
// the blocks on events; the numbers of a queue ascend.
#pragma once

#include "ferro/core/streams/capture_order.h"
#include "ferro/core/streams/device_timeline.h"
#include "ferro/core/streams/event_pool.h"
#include "ferro/core/types/block.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

namespace ferro {

class PendingFrees {
 public:
  // `stream` is the heap's own. While `*stream_lasts` is false, the stream may no longer exist and
  // the driver is not queried about it; null means that it lasts.
  PendingFrees(Driver& driver, EventPool& events, StreamId stream,
               const std::atomic<bool>* stream_lasts = nullptr)
      : driver_(driver),
        events_(events),
        own_stream_(stream),
        order_(driver, stream),
        stream_lasts_(stream_lasts) {}

  // Takes a block with recorded uses. True if it waits here. False if no use is left to wait for;
  // the caller then frees it. Never throws DriverError: after a refusal the block is deferred.
  bool add(Block* block);

  // Appends blocks whose last use is complete to `ready`. Queries the driver, never waits. On
  // DriverError the blocks already appended have left, all others are still here.
  void collect(std::vector<Block*>& ready);

  // Makes the heap's own stream wait for the uses of a block of at least `size` bytes, the one that
  // was freed first; the host does not wait. Appends to `ready` the blocks that this stream may use
  // from now on: this block, and others whose last use came before. Each block whose use the wait
  // covers gets the current epoch as its stamp, also if it still has other uses. False, with nothing
  // changed, if no such block has events or the stream captures. On DriverError as `collect`.
  bool stream_wait_for_one(std::size_t size, const DeviceTimeline& timeline,
                           std::vector<Block*>& ready);

  // Appends to `ready` the deferred blocks that are complete now. If there are none, returns the
  // oldest event of one stream, for which the caller waits without any lock before it calls
  // `collect`. The event stays valid until the next `collect` or `stream_wait_for_one`. None, with
  // nothing appended, if only blocks that running captures defer are pending.
  std::optional<EventId> next_event(std::vector<Block*>& ready);

  // Whether all work in the capture of the heap's stream, on any stream, precedes that stream's
  // next work. False if the driver refuses the query.
  bool is_behind_capture();

  std::size_t count() const { return count_; }
  // The bytes of blocks on events.
  std::size_t bytes_on_events() const { return bytes_on_events_; }
  void check_invariants() const;

 private:
  struct Entry {
    EventId event;
    Block* block;
    std::uint64_t number;  // ascends in the order of the frees
  };

  struct Deferred {
    Block* block;
    std::optional<CaptureFrontier> uses;  // in the capture of the heap's stream, when all are in it
  };

  enum class Start { kWaiting, kDeferred, kNothingToWaitFor };
  // Whether streams are queried for captures before events are recorded on them.
  enum class Query { kWhereNeeded, kAlways };
  Start start_waiting(Block* block, Query query);
  std::optional<CaptureFrontier> captured_uses(const Block& block);
  void retry_deferred(std::vector<Block*>& ready);
  void pop_complete(std::deque<Entry>& queue, std::vector<Block*>& ready);
  void finish_front(std::deque<Entry>& queue, std::vector<Block*>& ready);
  Block* first_freed(std::size_t size) const;

  Driver& driver_;
  EventPool& events_;
  const StreamId own_stream_;
  std::map<StreamId, std::deque<Entry>> queues_;
  CaptureOrder order_;
  const std::atomic<bool>* const stream_lasts_;
  std::vector<Deferred> deferred_;
  std::size_t count_ = 0;
  std::size_t bytes_on_events_ = 0;
  std::uint64_t next_number_ = 0;
};

}  // namespace ferro
