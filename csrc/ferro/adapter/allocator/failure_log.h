// The last failures of the process, for callers that have only the text of an error.
#pragma once

#include "ferro/adapter/history/call_sites.h"
#include "ferro/adapter/history/tags.h"
#include "ferro/base/mutex.h"
#include "ferro/core/policy/report.h"
#include "ferro/graph/graph_sizes.h"

#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ferro {

// What a private pool holds at a failure.
struct PoolShare {
  std::string name;  // given by the user, else its id
  PoolSizes sizes;
};

struct Failure {
  OutOfMemoryFacts facts;
  std::vector<PoolShare> pools;  // the largest first
  CallSites call_sites;          // empty while no history is recorded
  std::vector<TagTotal> tags;    // live memory by tag, the largest first
  std::string previous;          // name of the previous allocator; empty if it holds nothing
  std::string message;           // text of the error
};

// One sentence each about the largest private pools and the previous allocator; may be empty.
std::string describe_pools(const Failure& failure);
std::string describe_previous(const Failure& failure);
// One line of text for each line of code, or tag, that holds the most memory; may be empty.
std::string describe_call_sites(const Failure& failure);
std::string describe_tags(const Failure& failure);

// Thread-safe. Keeps the last kKept failures.
class FailureLog {
 public:
  static constexpr std::size_t kKept = 16;

  void add(Failure failure) FERRO_EXCLUDES(mutex_);
  // The last one whose message is part of `text`.
  std::optional<Failure> find(std::string_view text) const FERRO_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::deque<Failure> failures_ FERRO_GUARDED_BY(mutex_);  // the last one first
};

}  // namespace ferro
