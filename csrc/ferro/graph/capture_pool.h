// A pool that graphs are captured into, apart from its memory: its name, its seal, and the buffers
// that live as long as it does.
//
// Sealed: no capture into it may begin and nothing may be allocated in it; graphs that exist
// replay, and what it handed out may be freed. A *buffer* is anything that must outlive the graphs
// of the pool: a tensor that a kernel of theirs reads, a host array that a copy of theirs reads.
//
// Thread-safe. Buffers are dropped in the order of registration, outside of all locks, because that
// may run any code.
#pragma once

#include "ferro/base/mutex.h"
#include "ferro/core/types/pool_id.h"

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace ferro {

class CapturePool {
 public:
  using Buffer = std::shared_ptr<void>;

  CapturePool(const PoolId& id, std::string name) : id_(id), name_(std::move(name)) {}
  ~CapturePool() { clear_buffers(); }
  CapturePool(const CapturePool&) = delete;
  CapturePool& operator=(const CapturePool&) = delete;

  const PoolId& id() const { return id_; }
  // The name that the user gave; may be empty.
  std::string name() const FERRO_EXCLUDES(mutex_);
  void set_name(std::string name) FERRO_EXCLUDES(mutex_);

  void seal() { sealed_.store(true, std::memory_order_release); }
  void unseal() { sealed_.store(false, std::memory_order_release); }
  bool is_sealed() const { return sealed_.load(std::memory_order_acquire); }

  // Its number among the buffers, from 0; `clear_buffers` begins at 0 again.
  std::size_t record_buffer(Buffer buffer) FERRO_EXCLUDES(mutex_);
  std::size_t buffer_count() const FERRO_EXCLUDES(mutex_);
  void clear_buffers() FERRO_EXCLUDES(mutex_);

 private:
  const PoolId id_;
  std::atomic<bool> sealed_{false};
  mutable Mutex mutex_;
  std::string name_ FERRO_GUARDED_BY(mutex_);
  std::vector<Buffer> buffers_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
