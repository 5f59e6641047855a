#include "sim/libraries/nccl/mesh.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

namespace ferro::sim::nccl {
namespace {

// The time between two attempts to connect to a rank.
constexpr std::chrono::milliseconds kRetry{5};

struct Hello {
  std::int32_t ranks;
  std::int32_t rank;
};

// Precedes the bytes and the ranges of a message.
struct Frame {
  Place place;
  Terms terms;
  std::uint64_t bytes;
  std::uint64_t ranges;
  std::uint64_t identity;
};

bool send_all(int file, const void* data, std::size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(file, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent <= 0) {
      return false;
    }
    at += sent;
    bytes -= static_cast<std::size_t>(sent);
  }
  return true;
}

bool receive_all(int file, void* data, std::size_t bytes) {
  auto* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::recv(file, at, bytes, MSG_WAITALL);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got <= 0) {
      return false;
    }
    at += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

int milliseconds_until(Deadline deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, INT32_MAX));
}

Socket open_socket() { return Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

struct Address {
  sockaddr_un name{};
  socklen_t bytes = 0;

  Address(const std::string& communicator, int rank) {
    const std::string text = "ferro-sim-nccl-" + communicator + "-" + std::to_string(rank);
    name.sun_family = AF_UNIX;
    text.copy(name.sun_path + 1, sizeof(name.sun_path) - 1);
    bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

// None once the deadline has passed.
Socket connect_to(const Address& address, Deadline deadline) {
  while (true) {
    Socket socket = open_socket();
    if (::connect(socket.get(), address.get(), address.bytes) == 0) {
      return socket;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return Socket();
    }
    std::this_thread::sleep_for(kRetry);
  }
}

Socket accept_from(const Socket& listener, Deadline deadline) {
  pollfd wanted{listener.get(), POLLIN, 0};
  while (::poll(&wanted, 1, milliseconds_until(deadline)) < 0 && errno == EINTR) {
  }
  return Socket(wanted.revents != 0 ? ::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)
                                    : -1);
}

Failure timed_out(int rank, int ranks) {
  return {ncclSystemError, "rank " + std::to_string(rank) + " waited for " + std::to_string(ranks) +
                               " ranks to create a communicator, and some did not arrive "
                               "(FERRO_SIM_NCCL_TIMEOUT sets the seconds)"};
}

}  // namespace

Socket::~Socket() {
  if (file_ >= 0) {
    ::close(file_);
  }
}

std::unique_ptr<Mesh> Mesh::connect(const std::string& name, int ranks, int rank, Deadline deadline,
                                    Deliver deliver, Lose lose, Failure& failure) {
  std::vector<Socket> sockets(static_cast<std::size_t>(ranks));
  const Socket listener = open_socket();
  const Address own(name, rank);
  if (::bind(listener.get(), own.get(), own.bytes) != 0 || ::listen(listener.get(), ranks) != 0) {
    failure = {
        ncclInvalidUsage,
        "rank " + std::to_string(rank) +
            " of a communicator exists already, or cannot open a socket: " + std::strerror(errno)};
    return nullptr;
  }
  const Hello hello{ranks, rank};
  for (int lower = 0; lower < rank; ++lower) {
    Socket socket = connect_to(Address(name, lower), deadline);
    if (socket.get() < 0 || !send_all(socket.get(), &hello, sizeof hello)) {
      failure = timed_out(rank, ranks);
      return nullptr;
    }
    sockets[static_cast<std::size_t>(lower)] = std::move(socket);
  }
  for (int higher = rank + 1; higher < ranks; ++higher) {
    Socket socket = accept_from(listener, deadline);
    Hello other{};
    if (socket.get() < 0 || !receive_all(socket.get(), &other, sizeof other)) {
      failure = timed_out(rank, ranks);
      return nullptr;
    }
    if (other.ranks != ranks || other.rank <= rank || other.rank >= ranks) {
      failure = {ncclInvalidArgument, "rank " + std::to_string(other.rank) + " expects " +
                                          std::to_string(other.ranks) + " ranks, and rank " +
                                          std::to_string(rank) + " expects " +
                                          std::to_string(ranks)};
      return nullptr;
    }
    sockets[static_cast<std::size_t>(other.rank)] = std::move(socket);
  }
  return std::unique_ptr<Mesh>(new Mesh(std::move(sockets), std::move(deliver), std::move(lose)));
}

Mesh::Mesh(std::vector<Socket> sockets, Deliver deliver, Lose lose)
    : sockets_(std::move(sockets)),
      sending_(sockets_.size()),
      deliver_(std::move(deliver)),
      lose_(std::move(lose)),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      receiver_([this] { receive(); }) {}

Mesh::~Mesh() {
  disconnect();
  ::eventfd_write(stop_.get(), 1);
  receiver_.join();
}

void Mesh::disconnect() {
  for (const Socket& socket : sockets_) {
    if (socket.get() >= 0) {
      ::shutdown(socket.get(), SHUT_RDWR);
    }
  }
}

void Mesh::send(int to, const Message& message) {
  const auto index = static_cast<std::size_t>(to);
  const int file = sockets_[index].get();
  const Frame frame{message.place, message.terms, message.bytes.size(), message.uncertain.size(),
                    message.identity};
  const std::lock_guard guard(sending_[index]);
  (void)(send_all(file, &frame, sizeof frame) &&
         send_all(file, message.bytes.data(), message.bytes.size()) &&
         send_all(file, message.uncertain.data(),
                  message.uncertain.size() * sizeof(FerroSimRange)));
}

void Mesh::receive() {
  std::vector<pollfd> wanted;
  for (const Socket& socket : sockets_) {
    wanted.push_back({socket.get(), POLLIN, 0});
  }
  wanted.push_back({stop_.get(), POLLIN, 0});
  while (true) {
    if (::poll(wanted.data(), wanted.size(), -1) < 0) {
      continue;  // a signal
    }
    if (wanted.back().revents != 0) {
      return;
    }
    for (std::size_t rank = 0; rank < sockets_.size(); ++rank) {
      if (wanted[rank].revents != 0 && !receive_from(static_cast<int>(rank))) {
        wanted[rank].fd = -1;
        lose_(static_cast<int>(rank));
      }
    }
  }
}

bool Mesh::receive_from(int rank) {
  const int file = sockets_[static_cast<std::size_t>(rank)].get();
  Frame frame;
  if (!receive_all(file, &frame, sizeof frame)) {
    return false;
  }
  auto message = std::make_shared<Message>();
  message->place = frame.place;
  message->terms = frame.terms;
  message->identity = frame.identity;
  message->bytes.resize(frame.bytes);
  message->uncertain.resize(frame.ranges);
  if (!receive_all(file, message->bytes.data(), message->bytes.size()) ||
      !receive_all(file, message->uncertain.data(),
                   message->uncertain.size() * sizeof(FerroSimRange))) {
    return false;
  }
  deliver_(std::move(message));
  return true;
}

}  // namespace ferro::sim::nccl
