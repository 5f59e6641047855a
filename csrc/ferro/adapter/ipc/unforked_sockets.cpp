#include "ferro/adapter/ipc/unforked_sockets.h"

#include "ferro/adapter/ipc/file_descriptor.h"

#include <algorithm>
#include <pthread.h>
#include <sys/socket.h>
#include <system_error>
#include <unistd.h>
#include <vector>

namespace ferro {
namespace {

// Never destroyed: threads that serve sockets run until the process ends.
std::vector<int>& all() FERRO_REQUIRES(UnforkedSockets::mutex) {
  static auto& sockets = *new std::vector<int>();
  return sockets;
}

void before_fork() FERRO_NO_THREAD_SAFETY_ANALYSIS { UnforkedSockets::mutex.lock(); }

void after_fork() FERRO_NO_THREAD_SAFETY_ANALYSIS { UnforkedSockets::mutex.unlock(); }

void after_fork_in_child() FERRO_NO_THREAD_SAFETY_ANALYSIS {
  for (const int socket : all()) {
    close(socket);
  }
  all().clear();
  UnforkedSockets::mutex.unlock();
}

}  // namespace

Mutex UnforkedSockets::mutex;

void UnforkedSockets::add(int socket) {
  static const int registered = pthread_atfork(before_fork, after_fork, after_fork_in_child);
  if (registered != 0) {
    throw std::system_error(registered, std::system_category(), "pthread_atfork");
  }
  all().push_back(socket);
}

int UnforkedSockets::accept(int listener) {
  const MutexLock lock(mutex);
  FileDescriptor accepted(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (accepted.get() >= 0) {
    add(accepted.get());
  }
  return accepted.release();
}

void UnforkedSockets::forget(int socket) { std::erase(all(), socket); }

void UnforkedSockets::close(int socket) {
  const MutexLock lock(mutex);
  forget(socket);
  ::close(socket);
}

}  // namespace ferro
