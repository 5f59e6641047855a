#include "ferro/adapter/torch/interpreter_lock.h"

#include <utility>

namespace ferro {
namespace {

// Never destroyed: threads may wait while the process ends.
InterpreterLock& known() {
  static auto& lock = *new InterpreterLock();
  return lock;
}

}  // namespace

void set_interpreter_lock(InterpreterLock lock) { known() = std::move(lock); }

WithoutInterpreterLock::WithoutInterpreterLock()
    : released_(known().release ? known().release() : nullptr) {}

WithoutInterpreterLock::~WithoutInterpreterLock() {
  if (released_ != nullptr) {
    known().acquire(released_);
  }
}

}  // namespace ferro
