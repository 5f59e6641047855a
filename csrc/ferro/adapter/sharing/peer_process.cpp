#include "ferro/adapter/sharing/peer_process.h"

#include "ferro/base/mutex.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <stdexcept>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>

// Older C libraries lack the numbers, which are the same on all architectures.
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif

namespace ferro {
namespace {

constexpr std::size_t kMostOpen = 64;

// 0 when there is no such process.
std::uint64_t start_of_process(int process) {
  // By plain calls: a stream would take longer than all the rest of sharing a block.
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", process);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return 0;
  }
  char line[1024] = {};
  const ssize_t length = read(file, line, sizeof(line) - 1);
  close(file);
  // The second field is the program's name in parentheses, and may hold anything.
  const char* at = length > 0 ? std::strrchr(line, ')') : nullptr;
  constexpr int kFieldsAfterName = 20;
  for (int i = 0; i < kFieldsAfterName && at != nullptr; ++i) {
    at = std::strchr(at + 1, ' ');
  }
  return at == nullptr ? 0 : std::strtoull(at, nullptr, 10);
}

std::runtime_error refusal(const char* call) {
  return std::runtime_error(std::string(call) + ": " + std::strerror(errno));
}

}  // namespace

ProcessIdentity own_process() {
  static Mutex mutex;
  static ProcessIdentity known;
  const MutexLock lock(mutex);
  if (const int process = getpid(); process != known.process) {
    known = {process, start_of_process(process)};
  }
  return known;
}

// A descriptor of a process stays that process's, also when its number goes to another.
int PeerProcesses::find_or_open(const ProcessIdentity& process) {
  const auto key = std::pair(process.process, process.started);
  if (const auto found = open_.find(key); found != open_.end()) {
    if (process.started != 0) {
      return found->second;
    }
    // By its number alone it may be another process now.
    close(found->second);
    open_.erase(found);
  }
  const auto opened = static_cast<int>(syscall(SYS_pidfd_open, process.process, 0));
  if (opened < 0 && errno != ESRCH) {
    throw refusal("pidfd_open");
  }
  // Asked after opening: if it is the right one now, it was so then.
  if (opened < 0 ||
      (process.started != 0 && start_of_process(process.process) != process.started)) {
    if (opened >= 0) {
      close(opened);
    }
    throw std::runtime_error("there is no process " + std::to_string(process.process) +
                             " here that shared it");
  }
  if (open_.size() >= kMostOpen) {
    forget_all();
  }
  open_.emplace(key, opened);
  return opened;
}

std::vector<int> PeerProcesses::take(const ProcessIdentity& from,
                                     std::span<const int> descriptors) {
  const int process = find_or_open(from);
  std::vector<int> taken;
  for (const int number : descriptors) {
    const auto copy = static_cast<int>(syscall(SYS_pidfd_getfd, process, number, 0));
    if (copy < 0) {
      const std::runtime_error why = refusal("pidfd_getfd");
      for (const int done : taken) {
        close(done);
      }
      throw why;
    }
    taken.push_back(copy);
  }
  return taken;
}

void PeerProcesses::forget_all() {
  for (const auto& [process, descriptor] : open_) {
    close(descriptor);
  }
  open_.clear();
}

}  // namespace ferro
