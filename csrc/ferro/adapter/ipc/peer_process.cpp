#include "ferro/adapter/ipc/peer_process.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
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

constexpr std::size_t kMaxOpen = 64;

// 0 if there is no such process.
std::uint64_t start_of_process(int process) {
  // Plain calls, because a stream takes longer than all other work to share a block.
  char path[32];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", process);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return 0;
  }
  char line[1024] = {};
  const ssize_t length = read(file, line, sizeof(line) - 1);
  close(file);
  // The second field is the program's name in parentheses, with arbitrary characters.
  const char* at = length > 0 ? std::strrchr(line, ')') : nullptr;
  constexpr int kFieldsAfterName = 20;
  for (int i = 0; i < kFieldsAfterName && at != nullptr; ++i) {
    at = std::strchr(at + 1, ' ');
  }
  return at == nullptr ? 0 : std::strtoull(at, nullptr, 10);
}

// 0 if the kernel has no pid namespaces.
std::uint64_t own_pid_namespace() {
  struct stat found {};
  return stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

ProcessEnded ended(const ProcessIdentity& process) {
  return ProcessEnded("the process that shared it has ended" +
                      std::string(process.pid_namespace != 0
                                      ? ""
                                      : ", or has another number here (another pid namespace)"));
}

// True even if its parent has not waited for it yet, so that its number is still in use.
bool has_ended(int process_descriptor) {
  pollfd polled{process_descriptor, POLLIN, 0};
  return poll(&polled, 1, 0) == 1;
}

}  // namespace

ProcessIdentity own_process() {
  static Mutex mutex;
  static ProcessIdentity known;
  const MutexLock lock(mutex);
  if (const int process = getpid(); process != known.process) {
    known = {process, start_of_process(process), own_pid_namespace()};
  }
  return known;
}

bool is_in_this_namespace(const ProcessIdentity& process) {
  return process.pid_namespace != 0 && process.pid_namespace == own_process().pid_namespace;
}

// A process descriptor refers to the same process even after its number is reused.
int PeerProcesses::find_or_open(const ProcessIdentity& process) {
  if (process.pid_namespace != 0 && !is_in_this_namespace(process)) {
    throw std::runtime_error("it is of another pid namespace");
  }
  const auto key = std::pair(process.process, process.started);
  if (const auto found = open_.find(key); found != open_.end()) {
    if (process.started != 0 && !has_ended(found->second.get())) {
      return found->second.get();
    }
    // Without a known start, the number may belong to another process now.
    open_.erase(found);
  }
  FileDescriptor opened(static_cast<int>(syscall(SYS_pidfd_open, process.process, 0)));
  if (opened.get() < 0) {
    if (errno == ESRCH) {
      throw ended(process);
    }
    throw failure_of("pidfd_open");
  }
  // Checked after opening: if it is the right process now, it was so then.
  if (has_ended(opened.get()) ||
      (process.started != 0 && start_of_process(process.process) != process.started)) {
    throw ended(process);
  }
  if (open_.size() >= kMaxOpen) {
    open_.clear();
  }
  return open_.emplace(key, std::move(opened)).first->second.get();
}

std::vector<FileDescriptor> PeerProcesses::take(const ProcessIdentity& from,
                                                std::span<const int> descriptors) {
  const MutexLock lock(mutex_);
  const int process = find_or_open(from);
  std::vector<FileDescriptor> taken;
  for (const int number : descriptors) {
    FileDescriptor copy(static_cast<int>(syscall(SYS_pidfd_getfd, process, number, 0)));
    if (copy.get() < 0) {
      if (errno == EMFILE) {
        throw OutOfDescriptors("this process may open no more file descriptors (ulimit -n)");
      }
      throw failure_of("pidfd_getfd");
    }
    taken.push_back(std::move(copy));
  }
  return taken;
}

bool PeerProcesses::is_running(const ProcessIdentity& process) {
  const MutexLock lock(mutex_);
  try {
    (void)find_or_open(process);
    return true;
  } catch (const ProcessEnded&) {
    return false;
  } catch (const std::runtime_error&) {
    return start_of_process(process.process) == process.started;
  }
}

}  // namespace ferro
