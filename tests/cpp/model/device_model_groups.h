// The model's exclusive groups: pools that join and leave, and the owners of pages.
#pragma once

#include "model/device_model.h"

namespace ferro::testing {

// During captures, most requests for private pools go to their pools.
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

// The pages mapped where graphs write, by address.
inline DeviceModel::Pages DeviceModel::pages_of(std::span<const Graph> graphs) const {
  Pages pages;
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
    guarded([&] { result = graph_memory_->join(group, pool); });
    return result;
  };
  std::optional<SharingResult> result = join();
  if (!result) {
    FaultyApi::reset();
    ever_failed_ = true;
    expect(member || traffic_.captures() != 0 ||
               graph_memory_->leave(pool) == SharingResult::kNoMember,
           "a pool that cannot join is not a member");
    result = join();
  }
  if (traffic_.captures() != 0) {
    expect(*result == SharingResult::kCapturing || *result == SharingResult::kMember,
           "no pool joins during a capture");
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
  guarded([&] { result = graph_memory_->leave(pool); });
  if (!result || *result != SharingResult::kOk) {
    expect(before == pages_of(graphs_), "a pool that cannot leave stays as it was");
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
      expect(fault_struck() ||
                 std::min(budget(), rejection_limit_before_) <
                     device_->report().held_bytes() + graph_memory_->bytes_of(groups_.at(pool)).set,
             "only without pages of its own");
      return;
    case SharingResult::kCapturing: {
      const bool exposed = std::ranges::any_of(live_, [&](const auto& entry) {
        return entry.second.pool == pool && entry.second.exposed;
      });
      expect(traffic_.captures() != 0 || unsettled_.contains(pool) || exposed,
             "no pool leaves during a capture");
      return;
    }
    case SharingResult::kNoMember:
      expect(!is_member(pool), "members leave");
      return;
    default:
      expect(false, "nothing else forbids it");
  }
}

// Within each group, every page counts once: sum of reserved(pool) over the members == pages behind
// their blocks + pages that they share.
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
        const Span& span = *addresses().find(segment.ptr);
        for (std::size_t at = 0; at < segment.size; at += kPageBytes) {
          own += span.is_borrowed(span.page_slot(segment.ptr + at)) ? 0 : kPageBytes;
        }
      }
    }
    const GroupBytes bytes = graph_memory_->bytes_of(group);
    expect(held == own + bytes.set, "reserved bytes have each shared page once");
  }
}

// Checks that no graph has the page of a live block at another address, except the graph of the
// block.
inline void DeviceModel::check_owners() {
  using Handle = DriverLedger::Handle;
  const auto for_each_page = [this](std::uint64_t begin, std::size_t size, auto function) {
    for (std::uint64_t at = begin / kPageBytes * kPageBytes; at < begin + size; at += kPageBytes) {
      const auto [first, handle] = ledger_.mapping_behind(at);
      expect(handle != 0, "used memory is mapped");
      function(first, handle);
    }
  };
  // Memory that has left its pool may still be mapped.
  const auto is_there = [this](std::uint64_t begin, std::size_t size) {
    for (std::uint64_t at = begin / kPageBytes * kPageBytes; at < begin + size; at += kPageBytes) {
      const DevicePtr ptr{std::max(at, begin)};
      if (ledger_.handle_behind(at) == 0 ||
          addresses().find(ptr)->block_around(ptr)->state == BlockState::kTransit) {
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
    if (running_.contains(block.pool) || block.exposed) {
      continue;
    }
    // clang 14 captures no structured binding.
    for_each_page(begin, block.size, [&, of = block.graph](std::uint64_t first, Handle handle) {
      const auto [known, is_new] = of_blocks.try_emplace(handle, Page{first, of});
      expect(is_new || known->second.first == first, "a live page has one address");
      if (known->second.graph != of) {
        known->second.graph = 0;  // of no single graph
      }
    });
  }
  for (const Graph& graph : graphs_) {
    if (!graph.of_member && !is_member(graph.pool)) {
      continue;
    }
    for (const auto& [begin, size] : graph.ranges) {
      // The pool may have released pages before it joined.
      if (!graph.of_member && !is_there(begin, size)) {
        continue;
      }
      for_each_page(begin, size, [&](std::uint64_t first, Handle handle) {
        const auto live = of_blocks.find(handle);
        // The graph still writes to memory that was freed after its capture, and other owners may
        // have it.
        expect(live == of_blocks.end() || live->second.first == first ||
                   live->second.graph == graph.number ||
                   (live->second.graph == 0 && writes(graph, live->second.first, 1)),
               "no graph has the page of another's live block at another address");
      });
    }
  }
}

}  // namespace ferro::testing
