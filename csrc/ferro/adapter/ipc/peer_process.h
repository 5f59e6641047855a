// Which process this is, and the file descriptors of others.
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

// A number means another process in another namespace, and later on. Never two processes of one
// machine are equal in all of it.
struct ProcessIdentity {
  int process = 0;
  std::uint64_t started = 0;        // in ticks since the machine did; 0: unknown
  std::uint64_t pid_namespace = 0;  // in which `process` is its number; 0: unknown
};

// Found out once, and again after fork(). Thread-safe.
ProcessIdentity own_process();

// Does its number mean that process here too, as far as both are known?
bool is_in_this_namespace(const ProcessIdentity& process);

// The process that shared the memory is no more.
class ProcessEnded : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Takes descriptors out of other processes, where the kernel allows it (the right to trace them).
// Keeps one descriptor for each process that it was asked about, at most 64. Thread-safe.
class PeerProcesses {
 public:
  // The caller's own copies, in the order of `descriptors`, which are numbers in that process.
  // Throws ProcessEnded, OutOfDescriptors, or another std::runtime_error with the reason; then nothing
  // is open.
  std::vector<FileDescriptor> take(const ProcessIdentity& from, std::span<const int> descriptors)
      FERRO_EXCLUDES(mutex_);
  // Of a process with a known start, in this namespace.
  bool is_running(const ProcessIdentity& process) FERRO_EXCLUDES(mutex_);

 private:
  int find_or_open(const ProcessIdentity& process) FERRO_REQUIRES(mutex_);

  Mutex mutex_;
  std::map<std::pair<int, std::uint64_t>, FileDescriptor> open_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
