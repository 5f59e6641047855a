// Hands file descriptors of this process to others through a Unix socket, where the kernel does not
// let them take the descriptors themselves (pidfd_getfd needs the right to trace the process).
//
// The socket has an abstract name, so nothing is left on disk; only processes of the same user, or
// root's, are answered. A thread serves it from the first `socket_name()` to the end of the
// process, which it never delays. Thread-safe. After fork() the child has no server until it asks
// for a name itself, and then one of its own.
#pragma once

#include "ferro/base/mutex.h"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

namespace ferro {

class DescriptorServer {
 public:
  // A descriptor of the caller's own for an id; -1 when there is none. Called by the thread.
  using Find = std::function<int(std::uint64_t)>;

  // Lives as long as the process.
  explicit DescriptorServer(Find find) : find_(std::move(find)) {}
  DescriptorServer(const DescriptorServer&) = delete;
  DescriptorServer& operator=(const DescriptorServer&) = delete;

  // Starts the server where there is none. Throws std::runtime_error when the system refuses a
  // socket or a thread.
  std::string socket_name() FERRO_EXCLUDES(mutex_);

 private:
  void serve(int listener) noexcept;
  void answer(int connection);

  const Find find_;
  Mutex mutex_;
  pid_t process_ FERRO_GUARDED_BY(mutex_) = 0;  // that the server runs in
  std::string name_ FERRO_GUARDED_BY(mutex_);
};

// Asks the server behind `socket_name` for descriptors, in the order of `ids`. Throws
// std::runtime_error with the reason; then nothing is open.
std::vector<int> receive_descriptors(const std::string& socket_name,
                                     std::span<const std::uint64_t> ids);

}  // namespace ferro
