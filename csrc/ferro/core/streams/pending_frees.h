// Blocks that the program freed while other streams may still use them.
//
// Belongs to its heap's lock. A block waits in one of two ways:
//  - on events: one per stream that used it, recorded at the free. Each stream has a queue of its
//    own, so a slow stream delays only what it used;
//  - deferred: some stream that used it is capturing, and events recorded then would become part of
//    the graph. Where all its uses and the heap's own stream are in one capture, it is ready as soon
//    as the graph orders the next work of that stream behind them. Otherwise, when the capture is
//    over its own uses are joined, and the others get events.
//
// Invariant: count() == blocks on events + deferred blocks; a block's `extra->events` == its entries
// in the queues, and is 0 exactly when it is deferred; bytes_on_events() == the sizes of the blocks
// on events; the numbers of a queue ascend.
#pragma once

#include "ferro/core/streams/capture_order.h"
#include "ferro/core/streams/event_pool.h"
#include "ferro/core/types/block.h"
#include "ferro/driver/driver.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

namespace ferro {

class PendingFrees {
 public:
  // `stream` is the heap's own. While `*stream_lasts` is false it may be gone, and nobody asks the
  // driver about it; null: it lasts.
  PendingFrees(Driver& driver, EventPool& events, StreamId stream,
               const std::atomic<bool>* stream_lasts = nullptr)
      : driver_(driver),
        events_(events),
        own_stream_(stream),
        order_(driver, stream),
        stream_lasts_(stream_lasts) {}

  // Takes a block with recorded uses. True: it waits here. False: no use is left to wait for, and
  // the caller frees it now. Never throws for a refusal of the driver: the block is deferred then.
  bool add(Block* block);

  // Appends blocks whose last use is complete to `ready`. Asks the driver, never waits. On
  // DriverError the blocks already appended are no longer here, all others still are.
  void collect(std::vector<Block*>& ready);

  // Makes the heap's own stream wait for the uses of a block of at least `size` bytes, the one that
  // was freed first; the host does not wait. Appends to `ready` what may be used on that stream
  // from now on: this block, and others whose last use came before. False: there is no such block
  // with events, or the stream captures; nothing changed. On DriverError as `collect`.
  bool stream_wait_for_one(std::size_t size, std::vector<Block*>& ready);

  // What the host may wait for next: appends to `ready` what was deferred and is complete now, and
  // where that is nothing gives the oldest event of one stream, to be waited for without any lock
  // and then collected. It stays as it is until the next `collect` or `stream_wait_for_one`. None
  // and nothing appended: nothing pends but what running captures defer.
  std::optional<EventId> next_event(std::vector<Block*>& ready);

  // Does all work in the capture of the heap's stream, on any stream, come before that stream's next
  // work? False if the driver refuses the question.
  bool is_behind_capture();

  std::size_t count() const { return count_; }
  // Of blocks on events.
  std::size_t bytes_on_events() const { return bytes_on_events_; }
  void check_invariants() const;

 private:
  struct Entry {
    EventId event;
    Block* block;
    std::uint64_t number;  // ascending in the order of the frees
  };

  struct Deferred {
    Block* block;
    std::optional<CaptureMark> uses;  // in the capture of the heap's stream, when all are in it
  };

  enum class Start { kWaiting, kDeferred, kNothingToWaitFor };
  // Whether streams are asked about captures before events are recorded on them.
  enum class Ask { kWhereNeeded, kAlways };
  Start start_waiting(Block* block, Ask ask);
  std::optional<CaptureMark> captured_uses(const Block& block);
  void retry_deferred(std::vector<Block*>& ready);
  void pop_complete(std::deque<Entry>& queue, std::vector<Block*>& ready);
  void finish_front(std::deque<Entry>& queue, std::vector<Block*>& ready);
  Block* first_freed(std::size_t size) const;

  Driver& driver_;
  EventPool& events_;
  const StreamId own_stream_;
  std::unordered_map<StreamId, std::deque<Entry>> queues_;
  CaptureOrder order_;
  const std::atomic<bool>* const stream_lasts_;
  std::vector<Deferred> deferred_;
  std::size_t count_ = 0;
  std::size_t bytes_on_events_ = 0;
  std::uint64_t next_number_ = 0;
};

}  // namespace ferro
