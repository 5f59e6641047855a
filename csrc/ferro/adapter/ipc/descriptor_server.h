// Hands file descriptors of this process to other processes through a Unix socket, for those that
// the kernel does not permit to copy descriptors (pidfd_getfd needs the right to trace the
// process).
//
// The socket has an abstract name, so no file remains. The server answers processes of the same
// user and of root that send the key of a handle (descriptor_protocol.h). It closes the connection
// to all others without an answer.
//
// One thread serves from the first `address()` until the process begins to end. The end waits at
// most one second for an answer in progress, because the driver may be making its descriptors. The
// thread never waits for one peer: connections without a request are polled together, and an answer
// is one message that fits. A silent connection is closed after 10 s. If there are more than 1,024,
// or more than a quarter of the descriptors that this process may open, the oldest is closed.
//
// Thread-safe. A child of fork() has neither the server nor a socket of its parent. Its first
// `address()` starts its own server with new keys.
#pragma once

#include "ferro/adapter/ipc/descriptor_protocol.h"
#include "ferro/adapter/ipc/file_descriptor.h"
#include "ferro/adapter/ipc/unforked_sockets.h"

#include <cstdint>
#include <functional>
#include <sys/types.h>
#include <utility>

namespace ferro {

class DescriptorServer {
 public:
  // Finds a descriptor for an id, which the caller owns: kSent, or the reason of the failure.
  // Called by the thread.
  using Find = std::function<DescriptorStatus(std::uint64_t id, FileDescriptor* found)>;

  // Lives as long as the process.
  explicit DescriptorServer(Find find) : find_(std::move(find)) {}
  DescriptorServer(const DescriptorServer&) = delete;
  DescriptorServer& operator=(const DescriptorServer&) = delete;

  // Starts the server on the first call; the address is constant within a process. Throws
  // std::runtime_error if the system refuses a socket, a thread or random bytes.
  ServerAddress address() FERRO_EXCLUDES(UnforkedSockets::mutex);

 private:
  const Find find_;
  // The process in which the server runs.
  pid_t process_ FERRO_GUARDED_BY(UnforkedSockets::mutex) = 0;
  ServerAddress address_ FERRO_GUARDED_BY(UnforkedSockets::mutex);
};

}  // namespace ferro
