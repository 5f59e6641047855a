// Local sockets with abstract names, whose messages have boundaries and may carry descriptors.
//
// An abstract name needs no file, and is free again when the last descriptor of its listener is
// closed. Calls return the kernel's result and throw only std::bad_alloc.
#pragma once

#include "ferro/adapter/ipc/file_descriptor.h"

#include <cstddef>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

namespace ferro {

// The kernel's limit for one message.
inline constexpr std::size_t kMaxDescriptors = 253;

// A socket that is closed on exec. -1 on failure, with errno.
FileDescriptor open_unix_socket(int flags);
bool bind_abstract(int socket, const std::string& name);
// Fails with ECONNREFUSED if no process listens there.
bool connect_abstract(int socket, const std::string& name);

struct PeerCredentials {
  pid_t process = 0;  // in this pid namespace; 0: it has no number here
  uid_t user = static_cast<uid_t>(-1);
};
// The credentials of the process at the other end, from the kernel.
PeerCredentials peer_of(int connection);
// Whether the peer is of the same user or of root.
bool is_peer_trusted(int connection);

// Sends one message with all `descriptors`, or none. Blocks if the socket does.
bool send_message(int connection, std::span<const std::byte> bytes,
                  std::span<const FileDescriptor> descriptors);

struct ReceivedMessage {
  ssize_t size = -1;  // as sent, which may exceed the buffer; -1: see errno
  std::vector<FileDescriptor> descriptors;
};
ReceivedMessage receive_message(int connection, std::span<std::byte> bytes);

}  // namespace ferro
