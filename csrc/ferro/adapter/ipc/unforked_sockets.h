// Sockets whose copies in a child of fork() are closed before fork() returns there.
//
// A child with a copy of a listener that outlives its parent would keep the name, and its clients
// would wait for an answer that never comes. With a copy of a connection, the peer would not notice
// the parent's end.
#pragma once

#include "ferro/base/mutex.h"

namespace ferro {

class UnforkedSockets {
 public:
  // fork() takes it, so that the data that it guards is consistent in the child, where it is free.
  // Held briefly.
  static Mutex mutex;

  // `socket` was opened under the same hold of `mutex`. Throws std::bad_alloc or std::system_error;
  // then it was not added.
  static void add(int socket) FERRO_REQUIRES(mutex);
  // Accepts and adds the next connection of a nonblocking listener; it is nonblocking too. -1: see
  // errno.
  static int accept(int listener) FERRO_EXCLUDES(mutex);
  // Removes a socket, which stays open.
  static void forget(int socket) FERRO_REQUIRES(mutex);
  // Closes a socket that was added.
  static void close(int socket) FERRO_EXCLUDES(mutex);
};

}  // namespace ferro
