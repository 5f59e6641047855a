// The model's lending: which groups lend their scratch, what a request or a launch may get of it,
// and launches that take it back or are refused.
//
// The model knows no page that is lent. It sees in the ledger where nothing is mapped, allows that
// for scratch of groups that lend alone, and until the next launch.
#pragma once

#include "model/device_model.h"

namespace ferro::testing {

inline void DeviceModel::operator()(const SetLends& i) {
  const unsigned group = i.group % kGroups;
  bool must_ask = true;
  guarded([&] { must_ask = device_->scratch().lend(group, i.lends); });
  if (i.lends) {
    expect(must_ask, "launches of who lends have to ask");
    lends_.insert(group);
    return;
  }
  if (!must_ask) {
    lacking_.erase(group);
    expect_complete(group);
  } else if (may_lack(group)) {
    expect(fault_struck() || ever_failed_ || is_short_of(lent_bytes(group)),
           "it comes back at once where there is memory");
    lacking_.insert(group);
  } else {
    expect(false, "who has lent nothing lacks nothing");
  }
  lends_.erase(group);
}

inline void DeviceModel::operator()(const DropPool& i) {
  const PoolId pool = private_pool(i.pool);
  for (const auto& [begin, size] : live_in(pool)) {
    free(live_.find(begin));
  }
  while (!running_.contains(pool) && let_go(pool)) {
  }
}

inline void DeviceModel::operator()(const FreeLargest&) {
  auto largest = live_.end();
  for (auto block = live_.begin(); block != live_.end(); ++block) {
    if (block->second.pool == kDefaultPool &&
        (largest == live_.end() || largest->second.size < block->second.size)) {
      largest = block;
    }
  }
  if (largest != live_.end()) {
    free(largest);
  }
}

// A launch of a graph begins. False: it is refused, and nothing has changed.
inline bool DeviceModel::begin_launch(const Graph& graph) {
  const unsigned group = groups_.at(graph.pool);
  const Pages before = pages_of_members();
  std::optional<std::size_t> missing = 0;
  bool answered = false;
  guarded([&] {
    missing = device_->scratch().begin_launch(group);
    answered = true;
  });
  if (!answered || missing) {
    ++lending_counts_.refused;
    expect(may_lack(group), "a group that lends nothing is not refused");
    expect(are_same_where_mapped(before, pages_of_members()),
           "a launch that is refused changes nothing");
    if (answered) {
      check_refused(group, *missing);
    }
    return false;
  }
  lacking_.erase(group);
  expect_complete(group);
  if (before != pages_of_members()) {
    ++lending_counts_.back;
    read_eager_work();
  }
  return true;
}

inline void DeviceModel::check_refused(unsigned group, std::size_t missing) {
  const std::size_t lent = lent_bytes(group);
  expect(missing <= lent, "no more is missing than was lent");
  if (fault_struck() || ever_failed_) {
    return;
  }
  expect(missing != 0 && is_short_of(lent), "a launch is refused only for want of memory");
  if (traffic_.captures() == 0 && !has_peer_) {
    expect(idle_bytes(group) < missing, "other groups lend before a launch is refused");
  }
}

// While the launch is under way the program may ask for memory, and no scratch is lent to it.
inline void DeviceModel::launch_around(const Graph& graph, const Replay& i) {
  if (planted_ != Planted::kUnasked && !begin_launch(graph)) {
    return;
  }
  const bool is_open = planted_ == Planted::kUnasked || planted_ == Planted::kPastTheGate;
  if (planted_ == Planted::kPastTheGate) {
    device_->scratch().end_launch();
  }
  if (i.meanwhile != 0) {
    const Pages before = pages_of_members();
    is_launching_ = !is_open;
    (*this)(Allocate{0, i.stream + 1, i.meanwhile * kPageBytes});
    is_launching_ = false;
    expect(is_open || before == pages_of_members(), "nothing is lent while a launch is under way");
  }
  if (may_replay(graph, i.stream % Traffic::kStreams)) {
    replay(graph, i.stream % Traffic::kStreams);
  }
  if (!is_open) {
    device_->scratch().end_launch();
  }
}

// Where graphs of members write.
inline DeviceModel::Pages DeviceModel::pages_of_members() const {
  Pages pages;
  for (const Graph& graph : graphs_) {
    if (graph.of_member) {
      pages.merge(pages_of({&graph, 1}));
    }
  }
  return pages;
}

// What was on pages that graphs have again.
inline void DeviceModel::read_eager_work() {
  for (const auto& [begin, block] : live_) {
    if (block.pool == kDefaultPool && block.tag != 0 && block.stream != kGone &&
        !is_capturing(block.stream)) {
      traffic_.read(block.stream, DevicePtr{begin}, block.size, block.tag);
    }
  }
}

// Nothing of its graphs is without memory.
inline void DeviceModel::expect_complete(unsigned group) {
  for (const Graph& graph : graphs_) {
    if (graph.of_member && groups_.at(graph.pool) == group) {
      for (const auto& page : pages_of({&graph, 1})) {
        expect(page.second != 0, "what was lent is back");
      }
    }
  }
}

// What comes back, or is lent, has nothing behind it before or afterwards.
inline bool DeviceModel::are_same_where_mapped(const Pages& before, const Pages& after) {
  return std::ranges::all_of(before, [&](const auto& page) {
    const DriverLedger::Handle now = after.at(page.first);
    return page.second == 0 || now == 0 || page.second == now;
  });
}

inline std::size_t DeviceModel::all_lent_bytes() {
  std::size_t bytes = 0;
  for (unsigned group = 0; group < kGroups; ++group) {
    bytes += lent_bytes(group);
  }
  return bytes;
}

// That groups would lend, at least: handles without anything live that graphs of several pools
// borrowed. What died after a capture is of one pool alone.
inline std::size_t DeviceModel::idle_bytes(unsigned but) {
  std::map<DriverLedger::Handle, std::size_t> live;
  for (const auto& [begin, block] : live_) {
    ledger_.collect_handles(begin, block.size, live);
  }
  std::map<DriverLedger::Handle, std::set<PoolId>> pools;
  std::map<DriverLedger::Handle, std::size_t> borrowed;
  for (const Graph& graph : graphs_) {
    const unsigned group = graph.of_member ? groups_.at(graph.pool) : but;
    const auto is_busy = [&](const auto& entry) {
      return entry.second == group &&
             (running_.contains(entry.first) || unsettled_.contains(entry.first));
    };
    if (group == but || !lends_.contains(group) || std::ranges::any_of(groups_, is_busy)) {
      continue;
    }
    std::map<DriverLedger::Handle, std::size_t> of_graph;
    for (const auto& [begin, size] : graph.borrowed) {
      ledger_.collect_handles(begin, size, of_graph);
    }
    for (const auto& [handle, size] : of_graph) {
      pools[handle].insert(graph.pool);
    }
    borrowed.merge(of_graph);
  }
  std::size_t bytes = 0;
  for (const auto& [handle, size] : borrowed) {
    bytes += live.contains(handle) || pools.at(handle).size() < 2 ? 0 : size;
  }
  return bytes;
}

// Would so much more be beyond the device, or a limit?
inline bool DeviceModel::is_short_of(std::size_t bytes) {
  return std::min(budget(), rejection_limit_before_) < device_->report().held_bytes() + bytes;
}

inline void DeviceModel::count_lent() {
  const std::size_t lent = world_.lends ? all_lent_bytes() : 0;
  lending_counts_.lent += lent > lent_before_ ? 1 : 0;
  lent_before_ = lent;
}

}  // namespace ferro::testing
