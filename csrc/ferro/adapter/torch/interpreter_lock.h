// The interpreter's lock, which PyTorch holds in many of its calls and this code knows nothing of.
#pragma once

#include <functional>

namespace ferro {

// How this thread lets go of it and takes it again. Both may be called by any thread. Set once,
// before anything waits.
struct InterpreterLock {
  std::function<void*()> release;        // null when this thread does not have it
  std::function<void(void*)> take_back;  // with what `release` gave, unless that was null
};
void set_interpreter_lock(InterpreterLock lock);

// Other threads of the program go on until the end of the scope, while this one waits for another
// process. No lock of the allocator is held where it begins and where it ends.
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
