// Obtains copies of the file descriptors that another process shares: from the kernel if it permits
// that, otherwise from that process's DescriptorServer.
#pragma once

#include "ferro/adapter/ipc/descriptor_protocol.h"
#include "ferro/adapter/ipc/file_descriptor.h"
#include "ferro/adapter/ipc/ipc_handle.h"
#include "ferro/adapter/ipc/peer_process.h"
#include "ferro/adapter/ipc/unix_socket.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

namespace ferro {

// One connection to a server, for one request. Not thread-safe. After a failure only the connection
// is open.
class DescriptorClient {
 public:
  // How long each call waits for a stopped server.
  static constexpr std::chrono::milliseconds kPatience{10'000};

  // Throws std::runtime_error with the reason; at once if no process listens there.
  explicit DescriptorClient(ServerAddress address, std::chrono::milliseconds patience = kPatience);

  // The server's process number in this pid namespace; 0: it has none here.
  pid_t server_process() const { return peer_.process; }
  // Returns descriptors in the order of `ids`. Throws OutOfDescriptors if a request for fewer may
  // succeed; otherwise std::runtime_error with the reason, also when `patience` ends and when
  // another process answers than the one that made the handle.
  std::vector<FileDescriptor> request(std::span<const std::uint64_t> ids);

 private:
  const ServerAddress address_;
  const std::chrono::milliseconds patience_;
  const FileDescriptor connection_;
  PeerCredentials peer_;
};

// Calls `use` for each of `handle.units` in order, with a copy of its descriptor that is closed
// afterwards. At most 32 are open at a time; fewer if one of the processes has no room for them.
// Accepts an answer over a socket only from the process that made the handle: it compares the user
// and the key, and in the same pid namespace also the process's number and start. Throws
// std::runtime_error with one sentence, and what `use` throws; then no descriptor is open.
using UseDescriptor = std::function<void(const IpcUnit&, const FileDescriptor&)>;
void receive_descriptors(const IpcHandle& handle, PeerProcesses& peers, const UseDescriptor& use);

}  // namespace ferro
