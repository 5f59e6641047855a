// The model's exclusive groups: pools that join and leave, graphs that are captured into pools and
// replay, and which page is whose.
//
// A replay writes every byte of all that its capture was given. So a page that two have at once
// shows as a wrong tag of a block that is read later.
#pragma once

#include "model/device_model.h"

namespace ferro::testing {

// While graphs are captured, most requests for private pools are theirs.
inline PoolId DeviceModel::pool_for(unsigned number) const {
  if (number >= 128 && !running_.empty()) {
    return std::next(running_.begin(), static_cast<std::ptrdiff_t>(number % running_.size()))
        ->first;
  }
  return kPools[number % kPools.size()];
}

inline bool DeviceModel::is_alone(const PoolId& pool) const {
  const unsigned group = groups_.at(pool);
  return std::ranges::count_if(groups_, [&](const auto& e) { return e.second == group; }) == 1;
}

// By address, what is mapped where graphs write.
inline std::map<CUdeviceptr, DriverLedger::Handle> DeviceModel::pages_of(
    std::span<const Graph> graphs) const {
  std::map<CUdeviceptr, DriverLedger::Handle> pages;
  for (const Graph& graph : graphs) {
    for (const auto& [begin, size] : graph.ranges) {
      for (std::uint64_t at = begin / kPageBytes * kPageBytes; at < begin + size;
           at += kPageBytes) {
        pages[at] = ledger_.handle_behind(at);
      }
    }
  }
  return pages;
}

inline void DeviceModel::operator()(const JoinGroup& i) {
  const PoolId pool = private_pool(i.pool);
  const unsigned group = i.group % kGroups;
  const auto before = groups_.find(pool);
  const bool member = before != groups_.end();
  const auto join = [&] {
    std::optional<SharingResult> result;
    guarded([&] { result = device_->scratch().join(group, pool); });
    return result;
  };
  std::optional<SharingResult> result = join();
  if (!result) {
    FaultyApi::reset();
    ever_failed_ = true;
    expect(member || traffic_.captures() != 0 ||
               device_->scratch().leave(pool) == SharingResult::kNoMember,
           "who cannot join is no member");
    result = join();
  }
  if (traffic_.captures() != 0) {
    expect(*result == SharingResult::kCapturing || *result == SharingResult::kMember,
           "nobody joins during a capture");
    return;
  }
  if (member && before->second != group && !is_alone(pool)) {
    expect(*result == SharingResult::kMember, "a pool is a member of one group");
    return;
  }
  expect(*result == SharingResult::kOk, "a pool joins");
  groups_[pool] = group;
  check_owners();
}

inline void DeviceModel::operator()(const LeaveGroup& i) {
  const PoolId pool = private_pool(i.pool);
  const auto before = pages_of(graphs_);
  std::optional<SharingResult> result;
  guarded([&] { result = device_->scratch().leave(pool); });
  if (!result || *result != SharingResult::kOk) {
    expect(pages_of(graphs_) == before, "a pool that cannot leave stays as it was");
  }
  if (!result) {
    return;
  }
  switch (*result) {
    case SharingResult::kOk:
      expect(is_member(pool), "only members leave");
      groups_[pool] = next_lone_++;
      check_owners();
      return;
    case SharingResult::kOutOfMemory:
      expect(fault_struck() || std::min(budget(), rejection_limit_before_) <
                                   device_->report().held_bytes() +
                                       device_->scratch().bytes_of(groups_.at(pool)).set,
             "only without pages of its own");
      return;
    case SharingResult::kCapturing: {
      const bool exposed = std::ranges::any_of(live_, [&](const auto& entry) {
        return entry.second.pool == pool && entry.second.exposed;
      });
      expect(traffic_.captures() != 0 || unsettled_.contains(pool) || exposed,
             "nobody leaves during a capture");
      return;
    }
    case SharingResult::kNoMember:
      expect(!is_member(pool), "members leave");
      return;
    default:
      expect(false, "nothing else forbids it");
  }
}

inline void DeviceModel::operator()(const EndCapture& i) {
  const auto running = std::ranges::find_if(running_, [&](const auto& entry) {
    return entry.second.stream == i.stream % Traffic::kStreams;
  });
  if (running != running_.end()) {
    end_graph(running->first, true);
    return;
  }
  traffic_.end_capture(i.stream);
  device_->set_captures(traffic_.captures());
}

inline void DeviceModel::operator()(const BeginGraph& i) {
  const PoolId pool = private_pool(i.pool);
  const unsigned stream = i.stream % Traffic::kStreams;
  if (running_.contains(pool) || traffic_.capturing(stream)) {
    return;
  }
  hold(pool);
  SharingResult result = SharingResult::kOutOfMemory;
  guarded([&] { result = device_->scratch().begin_capture(pool); });
  if (result != SharingResult::kOk) {
    expect(result == SharingResult::kOutOfMemory && (unsettled_.contains(pool) || fault_struck()),
           "a capture begins, but after one that failed");
    expect(let_go(pool), "it was held");
    return;
  }
  settle_blocks(pool);
  if (captured_.contains(pool) && !is_member(pool) && !excluded_.contains(pool)) {
    // Nobody declared it; what its graph keeps is its own from now on.
    groups_[pool] = next_lone_++;
    for (auto& [begin, block] : live_) {
      block.apart = block.apart || (block.pool == pool && block.graph != 0);
    }
  }
  running_[pool] = {++next_graph_, pool, stream, is_member(pool) && !excluded_.contains(pool)};
  traffic_.begin_capture(stream);
  device_->set_captures(traffic_.captures());
}

// What an earlier capture left alive has its own pages now.
inline void DeviceModel::settle_blocks(const PoolId& pool) {
  unsettled_.erase(pool);
  for (auto& [begin, block] : live_) {
    if (block.pool == pool && block.exposed) {
      block.exposed = false;
      block.apart = true;
      write_first(begin, block);
    }
  }
}

inline bool DeviceModel::has_pages(const PoolId& pool) {
  return std::ranges::any_of(device_->report().segments(&pool),
                             [](const SegmentView& segment) { return is_paged(segment.kind); });
}

inline void DeviceModel::note_captured(const PoolId& pool, std::uint64_t begin, std::size_t size) {
  Graph& graph = running_.at(pool);
  // Segments are shared with nobody.
  if (is_paged(heap_of(begin).kind())) {
    graph.ranges.emplace_back(begin, size);
    live_.at(begin).graph = graph.number;
  }
}

inline void DeviceModel::note_freed(const Block& block) {
  if (!world_.groups || block.pool == kDefaultPool || block.tag == 0) {
    return;
  }
  std::vector<std::shared_ptr<Event>>& uses = last_uses_[block.pool];
  std::erase_if(uses, [](const auto& event) { return event->complete(); });
  const auto add = [&](unsigned stream) {
    if (stream != kGone && !is_capturing(stream)) {
      uses.push_back(std::make_shared<Event>(traffic_.record(stream)));
    }
  };
  add(block.stream);
  for (const Use& use : block.uses) {
    add(use.stream);
  }
  if (block.last_work != nullptr) {
    uses.push_back(block.last_work);
  }
}

// Without a capture a pool gives also what its graphs have let go and still write, or have written
// lately when they are gone.
inline void DeviceModel::wait_for_replays(const Block& block) {
  if (!is_member(block.pool) || block.stream == kGone || is_capturing(block.stream)) {
    return;
  }
  const auto last = last_replay_.find(groups_.at(block.pool));
  if (last != last_replay_.end()) {
    last->second->hold_back(traffic_.stream(block.stream));
  }
}

inline void DeviceModel::operator()(const EndGraph& i) {
  if (!running_.empty()) {
    const auto running =
        std::next(running_.begin(), static_cast<std::ptrdiff_t>(i.pool % running_.size()));
    end_graph(running->first, i.succeeds);
  }
}

inline void DeviceModel::end_graph(PoolId pool, bool succeeds) {
  Graph graph = std::move(running_.extract(pool).mapped());
  traffic_.end_capture(graph.stream);
  device_->set_captures(traffic_.captures());
  const std::size_t held = device_->report().held_bytes();
  SharingResult result = SharingResult::kOutOfMemory;
  guarded([&] {
    result = device_->scratch().end_capture(
        pool, succeeds ? ScratchSharing::Outcome::kSucceeded : ScratchSharing::Outcome::kFailed);
  });
  const bool sound = result == SharingResult::kOk;
  expect(sound || result == SharingResult::kOutOfMemory, "nothing else can be wrong");
  std::size_t given = 0;
  for (const auto& range : graph.ranges) {
    given += pages_of(range.second) + (world_.coarse_handles ? 8 : 1);  // whole handles
  }
  for (auto& [begin, block] : live_) {
    if (block.graph == graph.number) {
      block.graph = succeeds && sound ? graph.number : 0;
      block.apart = graph.of_member && sound && is_paged(heap_of(begin).kind());
      block.exposed = !sound;
      if (sound) {
        write_first(begin, block);
      }
    }
  }
  if (!sound) {
    unsettled_.insert(pool);
    expect(fault_struck() || ever_failed_ || budget() < held + given * kPageBytes,
           "only without pages for what lives");
  }
  if (world_.any_order && succeeds && !is_member(pool) && !excluded_.contains(pool) &&
      has_pages(pool)) {
    captured_.insert(pool);
  }
  if (succeeds && sound) {
    graphs_.push_back(std::move(graph));
  } else {
    // Nobody has the graph.
    expect(let_go(pool), "it was held");
  }
}

inline bool DeviceModel::writes(const Graph& graph, std::uint64_t begin, std::size_t size) const {
  return std::ranges::any_of(graph.ranges, [&](const auto& range) {
    return range.first < begin + size && begin < range.first + range.second;
  });
}

// Whoever works where the graph does can be made to wait.
inline bool DeviceModel::may_replay(const Graph& graph, unsigned stream) const {
  if (traffic_.capturing(stream) || (!graph.of_member && traffic_.captures() != 0)) {
    return false;
  }
  return std::ranges::none_of(live_, [&](const auto& entry) {
    const Block& block = entry.second;
    const auto is_over = [&](unsigned of) { return of == kGone || is_capturing(of); };
    return writes(graph, entry.first, block.size) &&
           (is_over(block.stream) ||
            std::ranges::any_of(block.uses, [&](const Use& use) { return is_over(use.stream); }));
  });
}

inline void DeviceModel::operator()(const Replay& i) {
  const unsigned stream = i.stream % Traffic::kStreams;
  if (graphs_.empty() || !may_replay(graphs_[i.graph % graphs_.size()], stream)) {
    return;
  }
  const Graph& graph = graphs_[i.graph % graphs_.size()];
  if (!graph.of_member && std::ranges::any_of(pages_of({&graph, 1}),
                                              [](const auto& page) { return page.second == 0; })) {
    return;  // a pool that is no member may have lent what its graphs have let go of
  }
  // Streams that work on what it writes; without a group, on what anybody got of it since.
  std::set<unsigned> streams;
  std::map<std::uint64_t, Block*> blocks;
  for (auto& [begin, block] : live_) {
    if (writes(graph, begin, block.size)) {
      blocks[begin] = &block;
      streams.insert(block.stream);
      for (const Use& use : block.uses) {
        streams.insert(use.stream);
      }
      expect(block.graph == graph.number || !block.apart, "results are their graph's alone");
    }
  }
  if (!graph.of_member) {
    streams = {0, 1, 2};
  }
  for (const unsigned other : streams) {
    traffic_.order(other, stream);
  }
  for (const std::shared_ptr<Event>& use : last_uses_[graph.pool]) {
    use->hold_back(traffic_.stream(stream));
  }
  std::shared_ptr<Event>* last = nullptr;
  if (is_member(graph.pool)) {
    last = &last_replay_[groups_.at(graph.pool)];
    if (*last != nullptr) {
      (*last)->hold_back(traffic_.stream(stream));
    }
  }
  for (const auto& [begin, size] : graph.ranges) {
    const auto tag = static_cast<std::uint8_t>(1 + next_tag_++ % 255);
    traffic_.overwrite(stream, DevicePtr{begin}, size, tag);
    if (const auto found = blocks.find(begin); found != blocks.end()) {
      found->second->tag = tag;
    }
  }
  for (const auto& [begin, block] : blocks) {
    if (block->graph == graph.number) {
      traffic_.read(stream, DevicePtr{begin}, block->size, block->tag);
    } else {
      block->tag = 0;
    }
  }
  if (last != nullptr) {
    *last = std::make_shared<Event>(traffic_.record(stream));
  }
  for (const unsigned other : streams) {
    traffic_.order(stream, other);
  }
}

// Of what the members of each group hold, each page counts once: sum of reserved(pool) == pages
// behind their blocks + pages that they share.
inline void DeviceModel::check_groups() {
  if (groups_.empty()) {
    return;
  }
  check_owners();
  const auto reserved = device_->pools().reserved();
  for (unsigned group = 0; group < kGroups; ++group) {
    std::size_t held = 0;
    std::size_t own = 0;
    for (const auto& [pool, of] : groups_) {
      if (of != group) {
        continue;
      }
      const auto found = reserved.find(pool);
      held += found == reserved.end() || device_->pools().use_count(pool) < 0
                  ? 0
                  : static_cast<std::size_t>(found->second[kAll].current);
      for (const SegmentView& segment : device_->report().segments(&pool)) {
        if (!is_paged(segment.kind)) {
          own += segment.size;
          continue;
        }
        const Span& span = *addresses().find(segment.ptr);
        for (std::size_t at = 0; at < segment.size; at += kPageBytes) {
          own += span.is_borrowed(span.page_slot(segment.ptr + at)) ? 0 : kPageBytes;
        }
      }
    }
    const GroupBytes bytes = device_->scratch().bytes_of(group);
    expect(held == own + bytes.set, "reserved bytes have each shared page once");
  }
}

// A page of a block that lives has no other graph than its own at another address.
inline void DeviceModel::check_owners() {
  using Handle = DriverLedger::Handle;
  const auto for_each_page = [this](std::uint64_t begin, std::size_t size, auto function) {
    for (std::uint64_t at = begin / kPageBytes * kPageBytes; at < begin + size; at += kPageBytes) {
      const auto [first, handle] = ledger_.mapping_behind(at);
      expect(handle != 0, "what is in use is mapped");
      function(first, handle);
    }
  };
  const auto is_mapped = [this](std::uint64_t begin, std::size_t size) {
    for (std::uint64_t at = begin / kPageBytes * kPageBytes; at < begin + size; at += kPageBytes) {
      if (ledger_.handle_behind(at) == 0) {
        return false;
      }
    }
    return true;
  };
  struct Page {
    std::uint64_t first;
    unsigned graph;
  };
  std::map<Handle, Page> of_blocks;
  for (const auto& [begin, block] : live_) {
    if (!is_paged(heap_of(begin).kind()) || running_.contains(block.pool) || block.exposed) {
      continue;
    }
    // clang 14 captures no structured binding.
    for_each_page(begin, block.size, [&, of = block.graph](std::uint64_t first, Handle handle) {
      const auto [known, is_new] = of_blocks.try_emplace(handle, Page{first, of});
      expect(is_new || known->second.first == first, "a live page has one address");
      if (known->second.graph != of) {
        known->second.graph = 0;  // of nobody alone
      }
    });
  }
  for (const Graph& graph : graphs_) {
    if (!graph.of_member && !is_member(graph.pool)) {
      continue;
    }
    for (const auto& [begin, size] : graph.ranges) {
      // Before the pool joined it may have given pages back.
      if (!graph.of_member && !is_mapped(begin, size)) {
        continue;
      }
      if (!is_paged(heap_of(begin).kind())) {
        continue;
      }
      for_each_page(begin, size, [&](std::uint64_t first, Handle handle) {
        const auto live = of_blocks.find(handle);
        // What was let go after its capture, the graph writes there too, and anybody may have it.
        expect(live == of_blocks.end() || live->second.first == first ||
                   live->second.graph == graph.number ||
                   (live->second.graph == 0 && writes(graph, live->second.first, 1)),
               "no graph has the page of somebody's block at another address");
      });
    }
  }
}

}  // namespace ferro::testing
