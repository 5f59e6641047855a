// Gets copies of the descriptors that another process shares: from the kernel where it allows that,
// and otherwise from that process's DescriptorServer.
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

// One connection to a server, for one question. Not thread-safe. After a failure nothing is open
// but the connection.
class DescriptorClient {
 public:
  // A server that is stopped is waited for that long, in each call.
  static constexpr std::chrono::milliseconds kPatience{10'000};

  // Throws std::runtime_error with the reason: when nobody listens there, at once.
  explicit DescriptorClient(ServerAddress address, std::chrono::milliseconds patience = kPatience);

  // Who listens there: its number in this pid namespace; 0: it has none here.
  pid_t server_process() const { return peer_.process; }
  // In the order of `ids`. Throws OutOfDescriptors where fewer at a time may do, and std::runtime_error
  // with the reason otherwise, also when patience ends, or when the answer is not from where the handle
  // is from.
  std::vector<FileDescriptor> request(std::span<const std::uint64_t> ids);

 private:
  const ServerAddress address_;
  const std::chrono::milliseconds patience_;
  const FileDescriptor connection_;
  PeerCredentials peer_;
};

// Calls `use` for each of `handle.units`, in their order, with a copy of its descriptor that is closed
// afterwards. At most 32 are open at a time, and fewer where one of the processes has no room for so
// many. What comes from a socket is from the process that made the handle: by its number and its start,
// where it runs in this pid namespace, and by its user and its key in any case. Throws
// std::runtime_error with one sentence, and what `use` throws; then no descriptor is open.
using UseDescriptor = std::function<void(const IpcUnit&, const FileDescriptor&)>;
void receive_descriptors(const IpcHandle& handle, PeerProcesses& peers, const UseDescriptor& use);

}  // namespace ferro
