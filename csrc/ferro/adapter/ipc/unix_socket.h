// Local sockets with abstract names, whose messages keep their bounds and may carry descriptors.
//
// A name in the abstract space leaves nothing on disk and is free again when the last descriptor
// of its listener is closed. Calls return what the kernel says; nothing here throws
// but std::bad_alloc.
#pragma once

#include "ferro/adapter/ipc/file_descriptor.h"

#include <cstddef>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

namespace ferro {

// The kernel passes no more in one message.
inline constexpr std::size_t kMaxDescriptors = 253;

// A socket that is closed on exec. -1 on failure, with errno.
FileDescriptor open_unix_socket(int flags);
bool bind_abstract(int socket, const std::string& name);
// Fails with ECONNREFUSED when nobody listens there.
bool connect_abstract(int socket, const std::string& name);

struct PeerCredentials {
  pid_t process = 0;  // in this pid namespace; 0: it has no number here
  uid_t user = static_cast<uid_t>(-1);
};
// Of who connected or, at the other end, of who listened; the kernel vouches for it.
PeerCredentials peer_of(int connection);
// Is it of the same user, or root's?
bool is_peer_trusted(int connection);

// One message with all `descriptors`, or nothing. Waits as the socket does.
bool send_message(int connection, std::span<const std::byte> bytes,
                  std::span<const FileDescriptor> descriptors);

struct ReceivedMessage {
  ssize_t size = -1;  // as it was sent, which may be more than fitted; -1: errno says
  std::vector<FileDescriptor> descriptors;
};
ReceivedMessage receive_message(int connection, std::span<std::byte> bytes);

}  // namespace ferro
