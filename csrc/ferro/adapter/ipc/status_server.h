// Tells other processes of the same user, or root's, what this one holds: for `top`.
//
// A Unix socket whose abstract name is `status_server_name()`, so whoever may see the names
// (/proc/net/unix) finds all such processes, and nothing is left on disk. Who connects gets one
// message and the end of the connection; users who are not trusted get the end alone.
//
// One thread waits for connections from `start()` to the end of the process, and costs nothing while
// there are none. It waits for no peer. Thread-safe. A child of fork() has no server.
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
  // What is told. Called by the thread; more than the kernel takes in one message is not sent.
  using Describe = std::function<std::string()>;

  // Lives as long as the process.
  explicit StatusServer(Describe describe) : describe_(std::move(describe)) {}
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

  // Once a process; later calls do nothing. False: the system refuses a socket, its name or a
  // thread, and nothing is told.
  bool start() FERRO_EXCLUDES(UnforkedSockets::mutex);
  // Ends the answers of this process, for its end: the report reads objects that static destructors
  // end. Waits for an answer in progress, at most for a second.
  void stop() FERRO_EXCLUDES(UnforkedSockets::mutex);

 private:
  [[noreturn]] void run(int listener, std::timed_mutex& answering) const noexcept;
  void answer(int connection) const;

  const Describe describe_;
  // Locked by the thread while it answers, and by `stop`. Each process has its own, which is never
  // destroyed: another thread may have held the parent's during fork().
  std::timed_mutex* answering_ FERRO_GUARDED_BY(UnforkedSockets::mutex) = nullptr;
  // That the server runs in.
  pid_t process_ FERRO_GUARDED_BY(UnforkedSockets::mutex) = 0;
};

}  // namespace ferro
