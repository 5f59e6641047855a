// How many file descriptors this process may have open.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

namespace ferro {

// The number that the next descriptor gets. With it as the limit none can be opened.
inline rlim_t next_descriptor() {
  const int next = dup(STDIN_FILENO);
  close(next);
  return static_cast<rlim_t>(next);
}

// The most descriptors that this process may open, until the end of the scope.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit wanted{limit, before_.rlim_max};
    is_set_ = limit <= before_.rlim_max && setrlimit(RLIMIT_NOFILE, &wanted) == 0;
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  bool is_set() const { return is_set_; }

 private:
  rlimit before_{};
  bool is_set_ = false;
};

}  // namespace ferro
