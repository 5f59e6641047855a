// The identity of processes, and copies of the file descriptors of other processes.
#pragma once

#include "ferro/adapter/ipc/file_descriptor.h"
#include "ferro/base/mutex.h"

#include <cstdint>
#include <map>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace ferro {

// Unique among all processes of a machine. The number alone is not: it is reused, and other
// namespaces use it too.
struct ProcessIdentity {
  int process = 0;
  std::uint64_t started = 0;        // in ticks since the machine started; 0: unknown
  std::uint64_t pid_namespace = 0;  // of the number; 0: unknown
};

// Determined once, and again after fork(). Thread-safe.
ProcessIdentity own_process();

// Whether its number means the same process here. False if a namespace is unknown.
bool is_in_this_namespace(const ProcessIdentity& process);

// The process that shared the memory has ended.
class ProcessEnded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Copies descriptors of other processes, if the kernel permits it (the right to trace them). Keeps
// a descriptor of each process, at most 64. Thread-safe.
class PeerProcesses {
 public:
  // Copies `descriptors`, which are numbers in that process, in that order. The caller owns the
  // copies. Throws ProcessEnded, OutOfDescriptors, or another std::runtime_error with the reason;
  // then no copy is open.
  std::vector<FileDescriptor> take(const ProcessIdentity& from, std::span<const int> descriptors)
      FERRO_EXCLUDES(mutex_);
  // The process has a known start and is of this namespace.
  bool is_running(const ProcessIdentity& process) FERRO_EXCLUDES(mutex_);

 private:
  int find_or_open(const ProcessIdentity& process) FERRO_REQUIRES(mutex_);

  Mutex mutex_;
  std::map<std::pair<int, std::uint64_t>, FileDescriptor> open_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
