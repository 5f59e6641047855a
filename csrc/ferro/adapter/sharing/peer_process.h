// Which process this is, and the file descriptors of others.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace ferro {

// A number means another process in another namespace, and later on. Never two processes of one
// machine are equal in both.
struct ProcessIdentity {
  int process = 0;
  std::uint64_t started = 0;  // in ticks since the machine did; 0: unknown
};

// Found out once, and again after fork(). Thread-safe.
ProcessIdentity own_process();

// Takes descriptors out of other processes, where the kernel allows it (the right to trace them).
// Keeps one descriptor for each process that it was asked about, at most 64. Not thread-safe.
class PeerProcesses {
 public:
  PeerProcesses() = default;
  ~PeerProcesses() { forget_all(); }
  PeerProcesses(const PeerProcesses&) = delete;
  PeerProcesses& operator=(const PeerProcesses&) = delete;

  // The caller's own copies, in the order of `descriptors`, which are numbers in that process.
  // Throws std::runtime_error with the reason, also when it is not that process any more; then
  // nothing is open.
  std::vector<int> take(const ProcessIdentity& from, std::span<const int> descriptors);

 private:
  int find_or_open(const ProcessIdentity& process);
  void forget_all();

  std::map<std::pair<int, std::uint64_t>, int> open_;
};

}  // namespace ferro
