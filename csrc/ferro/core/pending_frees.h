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
// in the queues, and is 0 exactly when it is deferred.
#pragma once

#include "ferro/core/block.h"
#include "ferro/core/capture_order.h"
#include "ferro/core/event_pool.h"
#include "ferro/driver/driver.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>
#include <vector>

namespace ferro {

class PendingFrees {
 public:
  // What a free in a capture waits for when all its uses are in that capture too.
  enum class InCapture : std::uint8_t { kGraphOrder, kItsEnd };

  // `stream` is the heap's own.
  PendingFrees(Driver& driver, EventPool& events, StreamId stream,
               InCapture in_capture = InCapture::kGraphOrder)
      : driver_(driver), events_(events), order_(driver, stream), in_capture_(in_capture) {}

  // Takes a block with recorded uses. True: it waits here. False: no use is left to wait for, and
  // the caller frees it now. Never throws for a refusal of the driver: the block is deferred then.
  bool add(Block* block);

  // Appends blocks whose last use is complete to `ready`. Asks the driver, never waits. On
  // DriverError the blocks already appended are no longer here, all others still are.
  void collect(std::vector<Block*>& ready);

  // The host waits for the oldest event of one stream; then as `collect`. False when there is no
  // event to wait for (nothing pending, or all deferred behind captures).
  bool wait_for_one(std::vector<Block*>& ready);

  std::size_t count() const { return count_; }
  void check_invariants() const;

 private:
  struct Entry {
    EventId event;
    Block* block;
  };

  struct Deferred {
    Block* block;
    std::optional<CaptureMark> uses;  // in the capture of the heap's stream, when all are in it
  };

  enum class Start { kWaiting, kDeferred, kNothingToWaitFor };
  Start start_waiting(Block* block);
  std::optional<CaptureMark> captured_uses(const Block& block);
  void retry_deferred(std::vector<Block*>& ready);
  void pop_complete(std::deque<Entry>& queue, std::vector<Block*>& ready);
  void finish_front(std::deque<Entry>& queue, std::vector<Block*>& ready);

  Driver& driver_;
  EventPool& events_;
  std::unordered_map<StreamId, std::deque<Entry>> queues_;
  CaptureOrder order_;
  const InCapture in_capture_;
  std::vector<Deferred> deferred_;
  std::size_t count_ = 0;
};

}  // namespace ferro
