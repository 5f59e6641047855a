// A child of fork() that runs one function, sends a string to its parent, and is killed at the end
// of the scope.
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
  // The child sends the result of `work` to the parent; then it waits until it is killed.
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
  // The string from the child, at most 4 KiB; empty if its work threw.
  std::string read() const {
    std::array<char, 4096> text{};
    const ssize_t got = ::read(told_, text.data(), text.size());
    return {text.data(), static_cast<std::size_t>(std::max<ssize_t>(got, 0))};
  }
  // Ends the child without waiting for it, so that its process id stays in use.
  void end() const {
    kill(process_, SIGKILL);
    siginfo_t ended{};
    waitid(P_PID, static_cast<id_t>(process_), &ended, WEXITED | WNOWAIT);
  }
  void wait() const { waitpid(process_, nullptr, 0); }
  // Returns once the child is stopped, by itself or by another process.
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
