#include "ferro/adapter/allocator/failure_log.h"

#include <algorithm>
#include <utility>

namespace ferro {

std::string describe_pools(const Failure& failure) {
  constexpr std::size_t kNamed = 4;
  const std::vector<PoolShare>& pools = failure.pools;
  if (pools.empty()) {
    return "";
  }
  const std::size_t request = failure.facts.request;
  std::string text = " Private pools hold:";
  for (std::size_t i = 0; i < std::min(pools.size(), kNamed); ++i) {
    text += (i == 0 ? " " : ", ") + pools[i].name + " " +
            size_text(pools[i].sizes.private_bytes, request) + " (" +
            size_text(pools[i].sizes.live_bytes, request) + " live)";
  }
  return text + (pools.size() > kNamed ? ", and " + std::to_string(pools.size() - kNamed) + " more."
                                       : ".");
}

std::string describe_previous(const Failure& failure) {
  const OutOfMemoryFacts& facts = failure.facts;
  return facts.previous_held == 0
             ? ""
             : " Beside it, the allocator '" + failure.previous + "' holds " +
                   size_text(facts.previous_held, facts.request) + ", of which " +
                   size_text(facts.previous_live, facts.request) + " are live.";
}

void FailureLog::add(Failure failure) {
  const MutexLock lock(mutex_);
  failures_.push_front(std::move(failure));
  if (failures_.size() > kKept) {
    failures_.pop_back();
  }
}

std::optional<Failure> FailureLog::find(std::string_view text) const {
  const MutexLock lock(mutex_);
  for (const Failure& failure : failures_) {
    if (text.find(failure.message) != std::string_view::npos) {
      return failure;
    }
  }
  return std::nullopt;
}

}  // namespace ferro
