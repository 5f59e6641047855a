#include "ferro/adapter/ipc/status_server.h"

#include "ferro/adapter/ipc/file_descriptor.h"
#include "ferro/adapter/ipc/service_thread.h"
#include "ferro/adapter/ipc/unix_socket.h"

#include <cerrno>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <poll.h>
#include <span>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

namespace ferro {

std::string status_server_name() { return "ferro_alloc-status-" + std::to_string(getpid()); }

bool StatusServer::start() {
  const MutexLock lock(UnforkedSockets::mutex);
  if (process_ == getpid()) {
    return true;
  }
  FileDescriptor listener = open_unix_socket(SOCK_NONBLOCK);
  if (listener.get() < 0 || !bind_abstract(listener.get(), status_server_name()) ||
      listen(listener.get(), SOMAXCONN) != 0) {
    return false;
  }
  try {
    auto answering = std::make_unique<std::timed_mutex>();
    UnforkedSockets::add(listener.get());
    start_service_thread(
        [this, socket = listener.get(), &mutex = *answering] { run(socket, mutex); });
    answering_ = answering.release();
  } catch (const std::exception&) {
    UnforkedSockets::forget(listener.get());
    return false;
  }
  (void)listener.release();
  process_ = getpid();
  return true;
}

void StatusServer::stop() {
  std::timed_mutex* answering = nullptr;
  {
    const MutexLock lock(UnforkedSockets::mutex);
    answering = process_ == getpid() ? answering_ : nullptr;
  }
  if (answering != nullptr) {
    (void)answering->try_lock_for(std::chrono::seconds(1));
  }
}

void StatusServer::run(int listener, std::timed_mutex& answering) const noexcept {
  for (;;) {
    pollfd waiting{listener, POLLIN, 0};
    poll(&waiting, 1, -1);
    int connection = -1;
    try {
      connection = UnforkedSockets::accept(listener);
      if (connection >= 0) {
        const std::lock_guard lock(answering);
        answer(connection);
      } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        std::this_thread::sleep_for(kPauseAfterRefusal);
      }
    } catch (const std::exception&) {
      // Most likely out of memory; some may be free later.
      std::this_thread::sleep_for(kPauseAfterRefusal);
    }
    if (connection >= 0) {
      UnforkedSockets::close(connection);
    }
  }
}

void StatusServer::answer(int connection) const {
  if (is_peer_trusted(connection)) {
    const std::string text = describe_();
    send_message(connection, std::as_bytes(std::span(text)), {});
  }
}

}  // namespace ferro
