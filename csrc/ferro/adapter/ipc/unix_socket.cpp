#include "ferro/adapter/ipc/unix_socket.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace ferro {
namespace {

struct AbstractAddress {
  sockaddr_un address{};
  socklen_t length = 0;

  // An abstract name begins with a zero byte and is not terminated.
  explicit AbstractAddress(const std::string& name) {
    address.sun_family = AF_UNIX;
    const std::size_t size = std::min(name.size(), sizeof(address.sun_path) - 1);
    std::memcpy(address.sun_path + 1, name.data(), size);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

// The header of a message, with room for descriptors.
struct Envelope {
  iovec bytes{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxDescriptors)> control{};
  msghdr header{};

  Envelope(const std::byte* data, std::size_t size, std::size_t descriptors) {
    bytes = {const_cast<std::byte*>(data), size};
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    if (descriptors != 0) {
      header.msg_control = control.data();
      header.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors);
    }
  }
};

}  // namespace

FileDescriptor open_unix_socket(int flags) {
  return FileDescriptor(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
}

bool bind_abstract(int socket, const std::string& name) {
  const AbstractAddress address(name);
  return bind(socket, address.get(), address.length) == 0;
}

bool connect_abstract(int socket, const std::string& name) {
  const AbstractAddress address(name);
  return connect(socket, address.get(), address.length) == 0;
}

PeerCredentials peer_of(int connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return {};
  }
  return {peer.pid, peer.uid};
}

bool is_peer_trusted(int connection) {
  const uid_t user = peer_of(connection).user;
  return user == geteuid() || user == 0;
}

bool send_message(int connection, std::span<const std::byte> bytes,
                  std::span<const FileDescriptor> descriptors) {
  std::array<int, kMaxDescriptors> numbers{};
  std::ranges::transform(descriptors, numbers.begin(), &FileDescriptor::get);
  const std::size_t number_bytes = sizeof(int) * descriptors.size();
  Envelope envelope(bytes.data(), bytes.size(), descriptors.size());
  if (!descriptors.empty()) {
    cmsghdr* control = CMSG_FIRSTHDR(&envelope.header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(number_bytes);
    std::memcpy(CMSG_DATA(control), numbers.data(), number_bytes);
  }
  return sendmsg(connection, &envelope.header, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

ReceivedMessage receive_message(int connection, std::span<std::byte> bytes) {
  Envelope envelope(bytes.data(), bytes.size(), kMaxDescriptors);
  ReceivedMessage message;
  message.size = recvmsg(connection, &envelope.header, MSG_CMSG_CLOEXEC | MSG_TRUNC);
  const cmsghdr* control = message.size < 0 ? nullptr : CMSG_FIRSTHDR(&envelope.header);
  if (control != nullptr && control->cmsg_level == SOL_SOCKET && control->cmsg_type == SCM_RIGHTS) {
    std::array<int, kMaxDescriptors> numbers{};
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    std::memcpy(numbers.data(), CMSG_DATA(control), count * sizeof(int));
    message.descriptors.reserve(count);
    for (const int number : std::span(numbers).first(count)) {
      message.descriptors.emplace_back(number);
    }
  }
  return message;
}

}  // namespace ferro
