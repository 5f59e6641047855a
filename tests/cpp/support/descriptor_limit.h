// Limits on the open file descriptors of this process.
#pragma once

#include <cstddef>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

namespace ferro {

// The number of the next descriptor. With it as the limit none can be opened.
inline rlim_t next_descriptor() {
  const int next = dup(STDIN_FILENO);
  close(next);
  return static_cast<rlim_t>(next);
}

// The limit with which so many more descriptors can be opened.
inline rlim_t limit_with_room_for(std::size_t descriptors) {
  rlim_t limit = 0;
  std::vector<int> opened;
  for (std::size_t i = 0; i < descriptors; ++i) {
    opened.push_back(dup(STDIN_FILENO));
    limit = static_cast<rlim_t>(opened.back()) + 1;
  }
  for (const int descriptor : opened) {
    close(descriptor);
  }
  return limit;
}

// Sets the limit of descriptors until the end of the scope.
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
