// The model's graphs: captured into pools, and replayed.
//
// A replay writes every byte that its capture received. So a page with two owners shows as a wrong
// tag of a block that is read later.
#pragma once

#include "model/device_model.h"

namespace ferro::testing {

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
  guarded([&] { result = graph_memory_->begin_capture(pool); });
  if (result != SharingResult::kOk) {
    expect(result == SharingResult::kOutOfMemory && (unsettled_.contains(pool) || fault_struck()),
           "a capture begins, unless the previous one failed");
    expect(release(pool), "it was held");
    return;
  }
  settle_blocks(pool);
  if (captured_.contains(pool) && !is_member(pool) && !excluded_.contains(pool)) {
    // The pool was not declared; its graph owns the results from now on.
    groups_[pool] = next_lone_++;
    for (auto& [begin, block] : live_) {
      block.apart = block.apart || (block.pool == pool && block.graph != 0);
    }
  }
  running_[pool] = {++next_graph_, pool, stream, is_member(pool) && !excluded_.contains(pool)};
  begin_capture(stream);
}

// Marks the blocks that an earlier capture left alive: they have their own pages now.
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
  return !device_->report().segments(&pool).empty();
}

inline void DeviceModel::note_captured(const PoolId& pool, std::uint64_t begin, std::size_t size) {
  Graph& graph = running_.at(pool);
  graph.ranges.emplace_back(begin, size);
  live_.at(begin).graph = graph.number;
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

// Outside of captures a pool also serves memory that its graphs have freed and still write, or that
// destroyed graphs wrote lately.
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
    result = graph_memory_->end_capture(
        pool, succeeds ? GraphMemory::Outcome::kSucceeded : GraphMemory::Outcome::kFailed);
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
      block.apart = graph.of_member && sound;
      block.exposed = !sound;
      if (sound) {
        // In a pool with checkpoints an earlier graph of a group may have replayed meanwhile.
        if (!graph.of_member) {
          wait_for_replays(block);
        }
        write_first(begin, block);
      }
    }
  }
  if (!sound) {
    unsettled_.insert(pool);
    expect(fault_struck() || ever_failed_ ||
               std::min(budget(), rejection_limit_before_) < held + given * kPageBytes,
           "only without pages for live blocks");
  }
  if (world_.any_order && succeeds && !is_member(pool) && !excluded_.contains(pool) &&
      has_pages(pool)) {
    captured_.insert(pool);
  }
  if (succeeds && sound) {
    graphs_.push_back(std::move(graph));
  } else {
    // The program does not keep the graph.
    expect(release(pool), "it was held");
  }
}

inline bool DeviceModel::writes(const Graph& graph, std::uint64_t begin, std::size_t size) const {
  return std::ranges::any_of(graph.ranges, [&](const auto& range) {
    return range.first < begin + size && begin < range.first + range.second;
  });
}

// Whether all streams that use the graph's memory can be made to wait.
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
  replay(graphs_[i.graph % graphs_.size()], stream);
}

inline void DeviceModel::replay(const Graph& graph, unsigned stream) {
  if (!graph.of_member && std::ranges::any_of(pages_of({&graph, 1}),
                                              [](const auto& page) { return page.second == 0; })) {
    return;  // a non-member may have lent memory that its graphs have freed
  }
  // Streams that work on memory that the graph writes; without a group, also new owners of such
  // memory.
  std::set<unsigned> streams;
  std::map<std::uint64_t, Block*> blocks;
  for (auto& [begin, block] : live_) {
    if (writes(graph, begin, block.size)) {
      blocks[begin] = &block;
      streams.insert(block.stream);
      for (const Use& use : block.uses) {
        streams.insert(use.stream);
      }
      expect(block.graph == graph.number || !block.apart, "results belong to their own graph");
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

}  // namespace ferro::testing
