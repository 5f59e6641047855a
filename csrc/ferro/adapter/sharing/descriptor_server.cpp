#include "ferro/adapter/sharing/descriptor_server.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <random>
#include <stdexcept>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace ferro {
namespace {

// The kernel passes no more in one message.
constexpr std::size_t kMaxDescriptors = 253;
constexpr int kTimeoutSeconds = 10;

class Socket {
 public:
  explicit Socket(int descriptor) : descriptor_(descriptor) {}
  ~Socket() {
    if (descriptor_ >= 0) {
      close(descriptor_);
    }
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

[[noreturn]] void fail(const char* call) {
  throw std::runtime_error(std::string(call) + ": " + std::strerror(errno));
}

// An abstract address begins with a zero and has no end mark.
socklen_t fill_address(sockaddr_un& address, const std::string& name) {
  address = {};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

void set_timeout(int socket) {
  const timeval timeout{kTimeoutSeconds, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
}

bool is_trusted(int connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == geteuid() || peer.uid == 0);
}

// A message of one byte with descriptors.
struct Message {
  char byte = 0;
  iovec bytes{&byte, 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxDescriptors)> control{};
  msghdr header{};

  explicit Message(std::size_t descriptors) {
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    if (descriptors != 0) {
      header.msg_control = control.data();
      header.msg_controllen = CMSG_SPACE(sizeof(int) * descriptors);
    }
  }
};

bool send_descriptors(int connection, const std::vector<int>& descriptors) {
  Message message(descriptors.size());
  message.byte = descriptors.empty() ? 0 : 1;
  if (!descriptors.empty()) {
    cmsghdr* control = CMSG_FIRSTHDR(&message.header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int) * descriptors.size());
    std::memcpy(CMSG_DATA(control), descriptors.data(), sizeof(int) * descriptors.size());
  }
  return sendmsg(connection, &message.header, MSG_NOSIGNAL) == 1;
}

}  // namespace

std::string DescriptorServer::socket_name() {
  const MutexLock lock(mutex_);
  if (process_ == getpid()) {
    return name_;
  }
  std::random_device random;
  const std::string name = "ferro_alloc-" + std::to_string(getpid()) + "-" +
                           std::to_string((std::uint64_t{random()} << 32) | random());
  Socket listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (listener.get() < 0) {
    fail("socket");
  }
  sockaddr_un address;
  const socklen_t length = fill_address(address, name);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    fail("bind");
  }
  constexpr int kBacklog = 64;
  if (listen(listener.get(), kBacklog) != 0) {
    fail("listen");
  }
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([this, socket = listener.get()] { serve(socket); }).detach();
  } catch (...) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw;
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  (void)listener.release();
  process_ = getpid();
  name_ = name;
  return name_;
}

void DescriptorServer::serve(int listener) noexcept {
  for (;;) {
    const Socket connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.get() >= 0) {
      try {
        answer(connection.get());
      } catch (const std::exception&) {
        // The other side notices that the connection ended.
      }
    } else if (errno != EINTR && errno != ECONNABORTED) {
      // Out of descriptors, most likely; others may be closed meanwhile.
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
}

void DescriptorServer::answer(int connection) {
  set_timeout(connection);
  std::array<std::uint64_t, kMaxDescriptors> ids{};
  if (!is_trusted(connection)) {
    return;
  }
  const ssize_t received = recv(connection, ids.data(), sizeof(ids), 0);
  if (received <= 0 || received % sizeof(std::uint64_t) != 0) {
    return;
  }
  std::vector<int> descriptors;
  for (std::size_t i = 0; i < static_cast<std::size_t>(received) / sizeof(std::uint64_t); ++i) {
    const int descriptor = find_(ids[i]);
    if (descriptor < 0) {
      break;
    }
    descriptors.push_back(descriptor);
  }
  // All of them, or an empty answer.
  if (descriptors.size() * sizeof(std::uint64_t) == static_cast<std::size_t>(received)) {
    send_descriptors(connection, descriptors);
  } else {
    send_descriptors(connection, {});
  }
  for (const int descriptor : descriptors) {
    close(descriptor);
  }
}

std::vector<int> receive_descriptors(const std::string& socket_name,
                                     std::span<const std::uint64_t> ids) {
  const Socket connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (connection.get() < 0) {
    fail("socket");
  }
  set_timeout(connection.get());
  sockaddr_un address;
  const socklen_t length = fill_address(address, socket_name);
  if (connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    fail("connect");
  }
  if (ids.empty() || ids.size() > kMaxDescriptors ||
      send(connection.get(), ids.data(), ids.size_bytes(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(ids.size_bytes())) {
    fail("send");
  }
  Message message(kMaxDescriptors);
  if (recvmsg(connection.get(), &message.header, MSG_CMSG_CLOEXEC) != 1) {
    throw std::runtime_error("the process that shared the memory gave no answer");
  }
  std::vector<int> descriptors;
  const cmsghdr* control = CMSG_FIRSTHDR(&message.header);
  if (control != nullptr && control->cmsg_type == SCM_RIGHTS) {
    descriptors.resize((control->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(descriptors.data(), CMSG_DATA(control), descriptors.size() * sizeof(int));
  }
  if (descriptors.size() != ids.size()) {
    for (const int descriptor : descriptors) {
      close(descriptor);
    }
    throw std::runtime_error("the process that shared the memory has given it back since");
  }
  return descriptors;
}

}  // namespace ferro
