// Whether a stream captures, and a graph that was captured: launched on any stream, and counted.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/driver/driver.h"
#include "ferro/graph/capture_pool.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace ferro {

// Also of the legacy default stream while others capture, which the driver refuses to tell: it
// takes part in no capture. Throws DriverError.
CaptureStatus capture_status(Driver& driver, StreamId stream);

// What a device runs: that of a framework, which may do more than launch it. Both calls throw when
// they are refused.
class ExecutableGraph {
 public:
  ExecutableGraph() = default;
  virtual ~ExecutableGraph() = default;
  ExecutableGraph(const ExecutableGraph&) = delete;
  ExecutableGraph& operator=(const ExecutableGraph&) = delete;
  virtual void launch(StreamId stream) = 0;
  // Prepares the first launch on the device.
  virtual void upload(StreamId stream) = 0;
};

// Keeps its pool, and so the buffers recorded in it. Thread-safe as far as the executable graph is;
// the driver's is. num_replays() = launches that were not refused.
class CapturedGraph {
 public:
  CapturedGraph(std::unique_ptr<ExecutableGraph> graph, std::shared_ptr<CapturePool> pool)
      : pool_(std::move(pool)), graph_(std::move(graph)) {}

  void launch(StreamId stream) {
    graph_->launch(stream);
    replays_.fetch_add(1, std::memory_order_relaxed);
  }
  // Once; later calls do nothing, unless it was refused.
  void upload(StreamId stream) FERRO_EXCLUDES(mutex_);
  bool is_uploaded() const { return uploaded_.load(std::memory_order_acquire); }
  std::uint64_t num_replays() const { return replays_.load(std::memory_order_relaxed); }

  // Null when it was captured into none.
  const std::shared_ptr<CapturePool>& pool() const { return pool_; }
  bool has_pool() const { return pool_ != nullptr; }
  // Of its pool.
  std::size_t buffer_count() const { return has_pool() ? pool_->buffer_count() : 0; }

 private:
  // Destroyed after the graph that works in it.
  const std::shared_ptr<CapturePool> pool_;
  const std::unique_ptr<ExecutableGraph> graph_;
  Mutex mutex_;
  std::atomic<bool> uploaded_{false};
  std::atomic<std::uint64_t> replays_{0};
};

}  // namespace ferro
