#include "ferro/adapter/ipc/descriptor_server.h"

#include "ferro/adapter/ipc/service_thread.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <poll.h>
#include <span>
#include <stdexcept>
#include <sys/resource.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace ferro {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kMaxSilence{10};
constexpr std::size_t kMaxConnections = 1024;
// How long the end of the process waits for an answer.
constexpr std::chrono::seconds kLongestAnswer{1};
// So that a flood of connections does not delay the answers to requests.
constexpr int kAcceptsPerTurn = 64;

std::size_t max_connections() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return kMaxConnections;
  }
  return std::clamp<std::size_t>(limit.rlim_cur / 4, 1, kMaxConnections);
}

// The server's thread holds the mutex while it answers. A child of fork() has its own, because
// another thread may have held the parent's at that moment. Never destroyed.
struct Answering {
  const pid_t process = getpid();
  std::timed_mutex mutex;
};
std::atomic<Answering*> current_answering{nullptr};

// Runs when the process begins to end. The driver ends after this, and no thread may call it then.
// Later requests get no answer, because the mutex stays locked.
void stop_answering() {
  // A child of fork() inherits its parent's registration.
  Answering* const current = current_answering.exchange(nullptr);
  if (current != nullptr && current->process == getpid()) {
    (void)current->mutex.try_lock_for(kLongestAnswer);
  }
}

// The loop of the server's thread.
class Service {
 public:
  Service(int listener, ServerAddress address, const DescriptorServer::Find& find,
          std::timed_mutex& answering)
      : listener_(listener), address_(std::move(address)), find_(find), answering_(answering) {}

  [[noreturn]] void run() noexcept {
    for (;;) {
      try {
        turn();
      } catch (const std::exception&) {
        // Most likely out of memory; some may be free later.
        std::this_thread::sleep_for(kPauseAfterRefusal);
      }
    }
  }

 private:
  struct Connection {
    int socket;
    Clock::time_point since;
  };

  void turn();
  void wait();
  void accept_some();
  void close_beyond_limit();
  void close_oldest();
  bool is_done(int connection) noexcept;
  void answer(int connection, const DescriptorRequest& request, std::size_t ids);

  const int listener_;
  const ServerAddress address_;
  const DescriptorServer::Find& find_;
  std::timed_mutex& answering_;
  std::vector<Connection> silent_;  // without a request yet, oldest first
  std::vector<pollfd> polled_;      // `silent_`, then the listener
};

void Service::turn() {
  wait();
  const Clock::time_point now = Clock::now();
  std::size_t kept = 0;
  for (std::size_t i = 0; i < silent_.size(); ++i) {
    const Connection connection = silent_[i];
    if ((polled_[i].revents != 0 && is_done(connection.socket)) ||
        now - connection.since >= kMaxSilence) {
      UnforkedSockets::close(connection.socket);
    } else {
      silent_[kept++] = connection;
    }
  }
  silent_.erase(silent_.begin() + static_cast<std::ptrdiff_t>(kept), silent_.end());
  if (polled_.back().revents != 0) {
    accept_some();
  }
}

void Service::wait() {
  // The limit may have fallen, and poll() fails for more descriptors than it allows.
  close_beyond_limit();
  polled_.clear();
  for (const Connection& connection : silent_) {
    polled_.push_back({connection.socket, POLLIN, 0});
  }
  polled_.push_back({listener_, POLLIN, 0});
  int timeout = -1;
  if (!silent_.empty()) {
    const auto left = silent_.front().since + kMaxSilence - Clock::now();
    const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(left).count();
    timeout = static_cast<int>(std::max<std::int64_t>(0, rounded));
  }
  if (poll(polled_.data(), polled_.size(), timeout) < 0) {
    throw failure_of("poll");
  }
}

void Service::accept_some() {
  silent_.reserve(silent_.size() + kAcceptsPerTurn);
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    const int connection = UnforkedSockets::accept(listener_);
    if (connection >= 0) {
      if (!is_peer_trusted(connection)) {
        UnforkedSockets::close(connection);
        continue;
      }
      // Answered in the next turn, after those that came before have been.
      silent_.push_back({connection, Clock::now()});
      close_beyond_limit();
    } else if (errno == EAGAIN) {
      return;
    } else if ((errno == EMFILE || errno == ENFILE) && !silent_.empty()) {
      // The kernel allocates a descriptor before it checks whether a connection waits.
      pollfd waiting{listener_, POLLIN, 0};
      if (poll(&waiting, 1, 0) == 0) {
        return;
      }
      close_oldest();
    } else if (errno != EINTR && errno != ECONNABORTED) {
      std::this_thread::sleep_for(kPauseAfterRefusal);
      return;
    }
  }
}

void Service::close_beyond_limit() {
  while (silent_.size() > max_connections()) {
    close_oldest();
  }
}

// Answers a request that arrived since the last poll.
void Service::close_oldest() {
  (void)is_done(silent_.front().socket);
  UnforkedSockets::close(silent_.front().socket);
  silent_.erase(silent_.begin());
}

// Answers the request if it is permitted. False: no request has arrived yet.
bool Service::is_done(int connection) noexcept {
  try {
    DescriptorRequest request;
    const ssize_t size = recv(connection, &request, sizeof(request), MSG_DONTWAIT | MSG_TRUNC);
    if (size < 0) {
      return errno != EAGAIN && errno != EINTR;
    }
    const std::size_t ids = DescriptorRequest::ids_in(static_cast<std::size_t>(size));
    if (ids != 0 && request.magic == kRequestMagic && is_equal(request.key, address_.request_key)) {
      answer(connection, request, ids);
    }
  } catch (const std::exception&) {
    // The peer notices the end of the connection.
  }
  return true;
}

void Service::answer(int connection, const DescriptorRequest& request, std::size_t ids) {
  std::vector<FileDescriptor> found(ids);
  DescriptorStatus outcome = DescriptorStatus::kSent;
  const std::lock_guard lock(answering_);
  for (std::size_t i = 0; i < ids && outcome == DescriptorStatus::kSent; ++i) {
    outcome = find_(request.ids[i], &found[i]);
  }
  const auto send = [&](DescriptorStatus status, std::span<const FileDescriptor> descriptors) {
    const DescriptorAnswer answer{address_.answer_key, status};
    return send_message(connection, std::as_bytes(std::span(&answer, 1)), descriptors);
  };
  if (outcome != DescriptorStatus::kSent) {
    send(outcome, {});
  } else if (!send(DescriptorStatus::kSent, found)) {
    send(DescriptorStatus::kBusy, {});
  }
}

}  // namespace

ServerAddress DescriptorServer::address() {
  const MutexLock lock(UnforkedSockets::mutex);
  if (process_ == getpid()) {
    return address_;
  }
  std::uint64_t number = 0;
  const SharingKey random = random_key();
  std::memcpy(&number, random.data(), sizeof(number));
  const ServerAddress address{
      "ferro_alloc-" + std::to_string(getpid()) + "-" + std::to_string(number), random_key(),
      random_key()};
  FileDescriptor listener = open_unix_socket(SOCK_NONBLOCK);
  if (listener.get() < 0) {
    throw failure_of("socket");
  }
  if (!bind_abstract(listener.get(), address.name)) {
    throw failure_of("bind");
  }
  if (listen(listener.get(), SOMAXCONN) != 0) {
    throw failure_of("listen");
  }
  // The driver registered its own handler earlier, so that one runs after this.
  if (std::atexit(stop_answering) != 0) {
    throw failure_of("atexit");
  }
  UnforkedSockets::add(listener.get());
  try {
    auto answering = std::make_unique<Answering>();
    start_service_thread([this, address, socket = listener.get(), &mutex = answering->mutex] {
      Service(socket, address, find_, mutex).run();
    });
    current_answering.store(answering.release());
  } catch (...) {
    UnforkedSockets::forget(listener.get());
    throw;
  }
  (void)listener.release();
  process_ = getpid();
  address_ = address;
  return address;
}

}  // namespace ferro
