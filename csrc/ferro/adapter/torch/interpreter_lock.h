// The GIL, which PyTorch holds in many of its calls, without a dependency on Python.
#pragma once

#include <functional>

namespace ferro {

// Functions that release the GIL in this thread and take it again. Any thread may call them. Set
// once, before any thread waits.
struct InterpreterLock {
  std::function<void*()> release;      // null when this thread does not have it
  std::function<void(void*)> acquire;  // with the result of `release`, unless that was null
};
void set_interpreter_lock(InterpreterLock lock);

// Releases the GIL for the scope, so that other threads continue while this one waits for another
// process. The thread holds no lock of the allocator when the scope begins or ends.
class WithoutInterpreterLock {
 public:
  WithoutInterpreterLock();
  ~WithoutInterpreterLock();
  WithoutInterpreterLock(const WithoutInterpreterLock&) = delete;
  WithoutInterpreterLock& operator=(const WithoutInterpreterLock&) = delete;

 private:
  void* const released_;
};

}  // namespace ferro
