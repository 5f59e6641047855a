#include "ferro/graph/capture_pool.h"

#include <utility>

namespace ferro {

std::string CapturePool::name() const {
  const MutexLock lock(mutex_);
  return name_;
}

void CapturePool::set_name(std::string name) {
  const MutexLock lock(mutex_);
  name_ = std::move(name);
}

std::size_t CapturePool::record_buffer(Buffer buffer) {
  const MutexLock lock(mutex_);
  buffers_.push_back(std::move(buffer));
  return buffers_.size() - 1;
}

std::size_t CapturePool::buffer_count() const {
  const MutexLock lock(mutex_);
  return buffers_.size();
}

void CapturePool::clear_buffers() {
  std::vector<Buffer> dropped;
  {
    const MutexLock lock(mutex_);
    dropped.swap(buffers_);
  }
  for (Buffer& buffer : dropped) {
    buffer.reset();
  }
}

}  // namespace ferro
