// A child by fork() that does one thing, tells its parent a string, and is gone at the end of the
// scope.
#pragma once

#include <algorithm>
#include <array>
#include <csignal>
#include <cstddef>
#include <functional>
#include <string>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

namespace ferro {

class ChildProcess {
 public:
  // What `work` returns is told to the parent; then the child waits until it is killed.
  explicit ChildProcess(const std::function<std::string()>& work) {
    std::array<int, 2> ends{-1, -1};
    if (pipe(ends.data()) != 0) {
      return;
    }
    process_ = fork();
    if (process_ == 0) {
      close(ends[0]);
      tell(ends[1], work);
      close(ends[1]);
      for (;;) {
        pause();
      }
    }
    close(ends[1]);
    told_ = ends[0];
  }
  ~ChildProcess() {
    end();
    wait();
    close(told_);
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t process() const { return process_; }
  // What the child told, 4 KiB at most; empty when its work threw.
  std::string read() const {
    std::array<char, 4096> text{};
    const ssize_t got = ::read(told_, text.data(), text.size());
    return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }
  // It has ended afterwards, and is not waited for: its number stays taken.
  void end() const {
    kill(process_, SIGKILL);
    siginfo_t ended{};
    waitid(P_PID, static_cast<id_t>(process_), &ended, WEXITED | WNOWAIT);
  }
  void wait() const { waitpid(process_, nullptr, 0); }
  // It stops itself, or is stopped; returns once it is.
  void wait_until_stopped() const { waitpid(process_, nullptr, WUNTRACED); }

 private:
  static void tell(int pipe, const std::function<std::string()>& work) {
    try {
      const std::string text = work();
      (void)!write(pipe, text.data(), text.size());
    } catch (...) {
      _exit(1);
    }
  }

  pid_t process_ = -1;
  int told_ = -1;
};

}  // namespace ferro
