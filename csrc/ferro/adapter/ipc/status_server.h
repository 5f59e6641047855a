// Reports the memory of this process to processes of the same user and of root, for `top`.
//
// It listens on a Unix socket with the abstract name `status_server_name()`. Readers find all such
// processes in /proc/net/unix, and no file remains. A client gets one message and the end of the
// connection; an untrusted user gets only the end.
//
// One thread waits for connections from `start()` to the end of the process. It never waits for a
// peer. Thread-safe. A child of fork() has no server.
#pragma once

#include "ferro/adapter/ipc/unforked_sockets.h"

#include <functional>
#include <mutex>
#include <string>
#include <sys/types.h>

namespace ferro {

// `ferro_alloc-status-PROCESS`, of this process.
std::string status_server_name();

class StatusServer {
 public:
  // Makes the report. Called by the thread. A report that exceeds one message of the kernel is not
  // sent.
  using Describe = std::function<std::string()>;

  // Lives as long as the process.
  explicit StatusServer(Describe describe) : describe_(std::move(describe)) {}
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  // Starts once per process; later calls are no-ops. False: the system refused a socket, its name
  // or a thread, and there is no server.
  bool start() FERRO_EXCLUDES(UnforkedSockets::mutex);
  // Ends the answers before the process ends, because the report reads objects that static
  // destructors destroy. Waits at most a second for an answer in progress.
  void stop() FERRO_EXCLUDES(UnforkedSockets::mutex);

 private:
  [[noreturn]] void run(int listener, std::timed_mutex& answering) const noexcept;
  void answer(int connection) const;

  const Describe describe_;
  // Locked by the thread while it answers, and by `stop`. Each process has its own, which is never
  // destroyed: another thread may have held the parent's during fork().
  std::timed_mutex* answering_ FERRO_GUARDED_BY(UnforkedSockets::mutex) = nullptr;
  // The process in which the server runs.
  pid_t process_ FERRO_GUARDED_BY(UnforkedSockets::mutex) = 0;
};

}  // namespace ferro
