#include "ferro/core/device/sleeper.h"

#include "ferro/base/check.h"
#include "ferro/driver/error.h"

#include <algorithm>
#include <set>
#include <utility>

namespace ferro {

void Sleeper::add(std::vector<Run>& runs, Heap* heap, Handle handle, std::size_t page_bytes) {
  const bool is_next = !runs.empty() && runs.back().heap == heap &&
                       runs.back().begin + runs.back().pages * page_bytes == handle.begin &&
                       (runs.back().pages + handle.range.pages) * page_bytes <= kLargestRun;
  if (!is_next) {
    runs.push_back({.heap = heap, .begin = handle.begin, .pages = 0, .parts = {}});
  }
  runs.back().pages += handle.range.pages;
  runs.back().parts.push_back(std::move(handle));
}

SleepFilter Sleeper::with_scratch_of(const SleepFilter& which, Share share, TagsOfPools* with) {
  struct Found {
    std::set<BlockTag> wanted;  // the tags of memory in use of the filter
    std::set<BlockTag> asleep;  // of other memory in use that is asleep
    bool any_other = false;     // in use and awake
  };
  std::map<PoolId, Found> found;
  for (Heap* heap : parts_.pools.all_heaps()) {
    if (const PoolId id = heap->pool(); id != kDefaultPool) {
      heap->visit_live([&, id](const BlockView& block) {
        if (which.has({block.ptr, block.requested, block.tag, id})) {
          found[id].wanted.insert(block.tag);
        } else if (block.is_asleep) {
          found[id].asleep.insert(block.tag);
        } else {
          found[id].any_other = true;
        }
      });
    }
  }
  std::set<PoolId> pools;
  for (const auto& [id, memory] : found) {
    if (share == Share::kAll && !memory.wanted.empty() && !memory.any_other) {
      pools.insert(id);
      (*with)[id].insert(memory.wanted.begin(), memory.wanted.end());
      (*with)[id].insert(memory.asleep.begin(), memory.asleep.end());
    }
    if (share == Share::kSome && !memory.wanted.empty()) {
      pools.insert(id);
    }
  }
  if (share == Share::kSome) {
    for (const auto& [id, tags] : *with) {
      const bool is_wanted = std::ranges::any_of(tags, [&, id = id](BlockTag tag) {
        return which.has({kNull, 0, tag, id});
      });
      if (is_wanted) {
        pools.insert(id);
      }
    }
  }
  return {which.has,
          [pools = std::move(pools), more = which.has_scratch](const PoolId& id) {
            return pools.contains(id) || more(id);
          },
          which.free, which.keeps};
}

// Handles that moved have no old mapping after that, which would keep their memory.
void Sleeper::wait_for_work() {
  if (!parts_.timeline.wait_for_all()) {
    // Memory that any device uses cannot go to sleep.
    parts_.timeline.wait_during_captures(DeviceTimeline::OfOthers::kUnlimited);
  }
  parts_.stale.remove_passed();
}

SleepOutcome Sleeper::sleep(const SleepFilter& which, Contents contents, Want want) {
  SleepOutcome outcome;
  if (is_busy()) {
    outcome.result = SleepResult::kBusy;
    return outcome;
  }
  // What other streams use is not pending any more then.
  if (which.free == SleepFilter::Free::kToo) {
    reclaimer_.empty_all();
  } else {
    wait_for_work();
    // No request gets this memory without a climb.
    reclaimer_.empty_gone_pools();
  }
  TagsOfPools with;
  const SleepFilter all = with_scratch_of(which, Share::kAll, &with);
  const std::vector<Run> runs = fall_asleep(all, outcome.staying);
  std::size_t given_up = 0;
  try {
    if (want == Want::kAll && outcome.staying.sum() != 0) {
      outcome.result = SleepResult::kStays;
    } else {
      parts_.observer.deliver_within_climb();
      // Again, because work may have been submitted until no request could get the memory.
      wait_for_work();
      if (contents == Contents::kKeep && !begin_to_save(runs, outcome)) {
        outcome.result = SleepResult::kNoHostMemory;
      }
    }
    if (outcome.result != SleepResult::kOk) {
      undo(runs);
      return outcome;
    }
    for (auto& [id, tags] : with) {
      slept_with_[id].merge(tags);
    }
    for (; given_up < runs.size(); ++given_up) {
      if (outcome.saved_bytes != 0) {
        parts_.driver.wait(event(given_up));
      }
      give_up(runs[given_up], outcome);
    }
    if (parts_.graphs != nullptr) {
      outcome.bytes += parts_.graphs->sleep_scratch(all, outcome.staying) * page_bytes();
    }
  } catch (...) {
    undo(std::span(runs).subspan(given_up));
    throw;
  }
  return outcome;
}

std::vector<Sleeper::Run> Sleeper::fall_asleep(const SleepFilter& which, StayingBytes& staying) {
  const std::set<PageHandle> shared =
      parts_.graphs != nullptr ? parts_.graphs->shared_handles() : std::set<PageHandle>{};
  std::vector<Run> runs;
  for (Heap* heap : parts_.pools.all_heaps()) {
    for (Handle& handle : heap->fall_asleep(which, shared, staying)) {
      add(runs, heap, std::move(handle), page_bytes());
    }
  }
  return runs;
}

// Begins to copy what is in use to the host. False: the host lacks memory.
bool Sleeper::begin_to_save(const std::vector<Run>& runs, SleepOutcome& outcome) {
  // Each part may become pieces of several segments, so that one begins while others are copied.
  constexpr std::size_t kLargestPart = std::size_t{256} << 20;
  std::size_t left = 0;
  for (const Run& run : runs) {
    for (const Handle& handle : run.parts) {
      for (const PageRun& used : handle.used) {
        left += used.bytes;
      }
    }
  }
  const std::size_t total = left;
  const std::size_t at_hand = host_.held_bytes() - host_.used_bytes();
  const std::size_t available = at_hand + available_host_bytes().value_or(left);
  if (available < left) {
    outcome.missing_bytes = left - available;
    return false;
  }
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (const Handle& handle : runs[i].parts) {
      for (const PageRun& used : handle.used) {
        std::vector<Saved>& saved = saved_[handle.begin];
        for (std::size_t done = 0; done < used.bytes;) {
          const std::size_t part = std::min(used.bytes - done, kLargestPart);
          std::vector<HostStore::Piece> pieces;
          if (!host_.take(part, left - part, pieces)) {
            outcome.missing_bytes = left;
            return false;
          }
          for (const HostStore::Piece& piece : pieces) {
            saved.push_back({used.begin + done, piece});
            parts_.driver.copy_to_host(piece.begin, used.begin + done, piece.bytes);
            done += piece.bytes;
          }
          left -= part;
        }
      }
    }
    parts_.driver.record_copies(event(i));
  }
  outcome.saved_bytes = total;
  return true;
}

EventId Sleeper::event(std::size_t number) {
  while (events_.size() <= number) {
    events_.push_back(parts_.driver.create_event());
  }
  return events_[number];
}

// The handles are still mapped.
void Sleeper::restore(const Run& run) {
  for (const Handle& handle : run.parts) {
    run.heap->wake(handle.begin, {&handle.range, 1}, "put_back");
    forget_saved(handle.begin);
  }
}

void Sleeper::undo(std::span<const Run> runs) {
  try {
    parts_.driver.wait_for_copies();
  } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): then no copy runs any more
  }
  for (const Run& run : runs) {
    restore(run);
  }
}

// The memory of the run goes to the driver, or stays cached if it refuses.
void Sleeper::give_up(const Run& run, SleepOutcome& outcome) {
  if (!parts_.driver.unmap(run.begin, run.pages * page_bytes())) {
    outcome.staying.add(StayReason::kRefused, run.pages * page_bytes());
    restore(run);
    return;
  }
  for (const Handle& handle : run.parts) {
    parts_.store.release({&handle.range, 1});
  }
  outcome.bytes += run.pages * page_bytes();
}

SleepOutcome Sleeper::wake(const SleepFilter& which) {
  SleepOutcome outcome;
  if (is_busy()) {
    outcome.result = SleepResult::kBusy;
    return outcome;
  }
  forget_freed();
  const SleepFilter all = with_scratch_of(which, Share::kSome, &slept_with_);
  std::vector<Run> runs;
  for (Heap* heap : parts_.pools.all_heaps()) {
    for (Handle& handle : heap->sleeping(all)) {
      outcome.bytes += handle.range.pages * page_bytes();
      add(runs, heap, std::move(handle), page_bytes());
    }
  }
  if (parts_.graphs != nullptr) {
    outcome.bytes += parts_.graphs->asleep_scratch(all) * page_bytes();
  }
  if (outcome.bytes == 0) {
    return outcome;
  }
  const auto back_from_cache = [&] {
    reclaimer_.empty_all();
    return back_all(runs, all, outcome);
  };
  if (!back_all(runs, all, outcome) && !back_from_cache() &&
      !(parts_.ask_program_for_memory() && back_from_cache())) {
    const std::size_t held = parts_.held_bytes();
    const std::size_t limit = parts_.store.limit();
    const std::size_t free =
        std::min(parts_.driver.memory_info().free_bytes, limit - std::min(limit, held));
    outcome.result = SleepResult::kOutOfMemory;
    outcome.missing_bytes = outcome.bytes - std::min(outcome.bytes, free);
    return outcome;
  }
  for (const Run& run : runs) {
    for (const Handle& handle : run.parts) {
      run.heap->wake(handle.begin, {&handle.range, 1}, "woken");
      forget_saved(handle.begin);
    }
  }
  std::erase_if(slept_with_, [&](const auto& entry) { return all.has_scratch(entry.first); });
  return outcome;
}

// Creates memory for all runs and for scratch, maps it and copies the contents there. False, and
// nothing is mapped: there is too little.
bool Sleeper::back_all(std::vector<Run>& runs, const SleepFilter& which, SleepOutcome& outcome) {
  outcome.saved_bytes = 0;
  try {
    for (Run& run : runs) {
      if (!create(run)) {
        put_back(runs);
        return false;
      }
      begin_to_load(run, outcome);
    }
    if (outcome.saved_bytes != 0) {
      parts_.driver.wait_for_copies();
    }
    // Last, because it cannot be undone.
    if (parts_.graphs != nullptr && !parts_.graphs->wake_scratch(which)) {
      put_back(runs);
      return false;
    }
  } catch (const InternalError&) {
    throw;
  } catch (...) {
    put_back(runs);
    throw;
  }
  return true;
}

// Handles as large as before: fewer are faster, and each can sleep by itself again.
bool Sleeper::create(Run& run) {
  std::vector<HandleRange> handles;
  for (Handle& handle : run.parts) {
    if (parts_.store.create_one(handle.range.pages, &handle.range.handle) != TakeResult::kOk) {
      return false;
    }
    handles.push_back(handle.range);
  }
  run.is_mapped = run.heap->map(run.begin, handles) == Status::kOk;
  return run.is_mapped;
}

void Sleeper::put_back(std::vector<Run>& runs) {
  try {
    parts_.driver.wait_for_copies();
  } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): then no copy runs any more
  }
  for (Run& run : runs) {
    FERRO_CHECK(!std::exchange(run.is_mapped, false) ||
                    parts_.driver.unmap(run.begin, run.pages * page_bytes()),
                "the driver refused to remove new mappings after a failed call");
    for (Handle& handle : run.parts) {
      if (handle.range.handle != kNoPage) {
        parts_.store.release({&handle.range, 1});
        handle.range.handle = kNoPage;
      }
    }
  }
}

void Sleeper::begin_to_load(const Run& run, SleepOutcome& outcome) {
  for (const Handle& handle : run.parts) {
    const auto saved = saved_.find(handle.begin);
    if (saved == saved_.end()) {
      continue;
    }
    for (const Saved& part : saved->second) {
      parts_.driver.copy_to_device(part.at, part.piece.begin, part.piece.bytes);
      outcome.saved_bytes += part.piece.bytes;
    }
  }
}

void Sleeper::forget_freed() {
  for (Heap* heap : parts_.pools.all_heaps()) {
    if (heap->asleep_bytes() == 0) {
      continue;
    }
    // A graph that is gone does not run any more: the device had finished its work.
    const bool has_graphs = heap->keeps_pages() && parts_.pools.use_count(heap->pool()) > 0;
    for (const DevicePtr begin : has_graphs ? std::vector<DevicePtr>{} : heap->forget_asleep()) {
      forget_saved(begin);
    }
  }
  std::erase_if(slept_with_, [this](const auto& entry) { return !is_asleep(entry.first); });
}

bool Sleeper::is_asleep(const PoolId& id) const {
  const std::vector<Heap*> heaps = parts_.pools.heaps_of(id);
  return std::ranges::any_of(heaps, [](const Heap* heap) { return heap->asleep_bytes() != 0; }) ||
         (parts_.graphs != nullptr && parts_.graphs->is_scratch_asleep(id));
}

void Sleeper::forget_saved(DevicePtr begin) {
  if (const auto saved = saved_.find(begin); saved != saved_.end()) {
    for (const Saved& part : saved->second) {
      host_.put({&part.piece, 1});
    }
    saved_.erase(saved);
  }
}

std::size_t Sleeper::asleep_bytes() const {
  std::size_t bytes = 0;
  for (const Heap* heap : parts_.pools.all_heaps()) {
    bytes += heap->asleep_bytes();
  }
  const SleepFilter all{nullptr, [](const PoolId&) { return true; }, {}};
  return bytes + (parts_.graphs != nullptr ? parts_.graphs->asleep_scratch(all) * page_bytes() : 0);
}

}  // namespace ferro
