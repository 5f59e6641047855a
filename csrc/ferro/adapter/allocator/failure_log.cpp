#include "ferro/adapter/allocator/failure_log.h"

#include <algorithm>
#include <utility>

namespace ferro {
namespace {

constexpr std::size_t kLinesNamed = 6;

std::string line_of(const Failure& failure, const BlockTotal& total, const std::string& name) {
  return "\n  " + size_text(total.bytes, failure.facts.request) + " in " +
         std::to_string(total.blocks) + (total.blocks == 1 ? " block: " : " blocks: ") + name;
}

}  // namespace

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

std::string describe_call_sites(const Failure& failure) {
  const CallSites& sites = failure.call_sites;
  if (sites.largest.empty()) {
    return "";
  }
  std::string text = "\nLive memory by the line of code that asked for it:";
  BlockTotal others = sites.others;
  std::size_t other_lines = sites.other_lines;
  for (std::size_t i = 0; i < sites.largest.size(); ++i) {
    const CallSite& site = sites.largest[i];
    if (i < kLinesNamed) {
      text += line_of(failure, site.total, site.line);
    } else {
      others.add(site.total);
      ++other_lines;
    }
  }
  if (other_lines != 0) {
    text += line_of(failure, others, std::to_string(other_lines) + " other lines");
  }
  if (sites.unknown.blocks != 0) {
    text += line_of(failure, sites.unknown, "unknown");
  }
  return text;
}

std::string describe_tags(const Failure& failure) {
  if (failure.tags.empty()) {
    return "";
  }
  std::string text = "\nLive memory by tag:";
  BlockTotal others;
  for (std::size_t i = 0; i < failure.tags.size(); ++i) {
    const TagTotal& tag = failure.tags[i];
    if (i < kLinesNamed) {
      text += line_of(failure, tag.total, tag.name);
    } else {
      others.add(tag.total);
    }
  }
  if (others.blocks != 0) {
    text +=
        line_of(failure, others, std::to_string(failure.tags.size() - kLinesNamed) + " other tags");
  }
  return text;
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
