// Hands file descriptors of this process to others through a Unix socket, where the kernel does not
// let them take the descriptors themselves (pidfd_getfd needs the right to trace the process).
//
// The socket has an abstract name, so nothing is left on disk. Answered are processes of the same
// user, or root's, that show the key of a handle (descriptor_protocol.h). All others find the
// connection closed and learn nothing.
//
// One thread serves it from the first `address()` until the process begins to end. The end waits for an
// answer that is being made, for a second at most, because the driver may be making its descriptors.
// It waits for no peer: connections that have asked for nothing yet are polled together, and an
// answer is one message that fits. A silent connection is closed after 10 s. There are at most
// 1,024 of them, and no more than a quarter of the descriptors that this process may open; then
// the one that has been silent the longest gives way.
//
// Thread-safe. A child of fork() has no server and no socket of its parent's. It starts one of its
// own, with other keys, when it asks for an address itself.
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
  // Finds a descriptor of the caller's own for an id: kSent with one, otherwise the reason. Called
  // by the thread.
  using Find = std::function<DescriptorStatus(std::uint64_t id, FileDescriptor* found)>;

  // Lives as long as the process.
  explicit DescriptorServer(Find find) : find_(std::move(find)) {}
  DescriptorServer(const DescriptorServer&) = delete;
  DescriptorServer& operator=(const DescriptorServer&) = delete;

  // The same one throughout a process. Starts the server where there is none. Throws
  // std::runtime_error when the system refuses a socket, a thread or random bytes.
  ServerAddress address() FERRO_EXCLUDES(UnforkedSockets::mutex);

 private:
  const Find find_;
  // That the server runs in.
  pid_t process_ FERRO_GUARDED_BY(UnforkedSockets::mutex) = 0;
  ServerAddress address_ FERRO_GUARDED_BY(UnforkedSockets::mutex);
};

}  // namespace ferro
