// Sockets that a child of fork() does not keep: its copies are closed before fork() returns there.
//
// With a copy of a listener, a child that outlives its parent would hold the name and let others
// wait for answers that nobody gives. With a copy of a connection, its other end would not notice
// that the parent has ended.
#pragma once

#include "ferro/base/mutex.h"

namespace ferro {

class UnforkedSockets {
 public:
  // fork() waits for it, so that what it guards is whole in the child, where it is free. Held for
  // moments only.
  static Mutex mutex;

  // `socket` was opened since `mutex` was taken. Throws std::bad_alloc or std::system_error; then
  // it is not among them.
  static void add(int socket) FERRO_REQUIRES(mutex);
  // The next connection of a listener that does not wait, which does not wait either; it was added.
  // -1: errno says why.
  static int accept(int listener) FERRO_EXCLUDES(mutex);
  // It stays open, and is the caller's alone again.
  static void forget(int socket) FERRO_REQUIRES(mutex);
  // Closes one that was added.
  static void close(int socket) FERRO_EXCLUDES(mutex);
};

}  // namespace ferro
