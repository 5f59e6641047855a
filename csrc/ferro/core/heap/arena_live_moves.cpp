// Live bytes that move: to other handles, behind the addresses that they are at. It is what a shared
// block goes through when it is joined (arena_exports.cpp), the other way round. Handles are vacated
// for a request, or split for an exclusive group (arena_scratch.cpp).
#include "ferro/base/check.h"
#include "ferro/core/heap/arena_heap.h"
#include "ferro/core/streams/fence.h"
#include "ferro/driver/error.h"

#include <map>
#include <optional>
#include <utility>

namespace ferro {

std::vector<ArenaHeap::PartlyFree> ArenaHeap::partly_free_handles() {
  if (!may_transfer_pages()) {
    return {};
  }
  const HeapLock lock(mutex_);
  return partly_free();
}

std::vector<ArenaHeap::PartlyFree> ArenaHeap::partly_free() {
  tiling_.merge_all();
  std::map<DevicePtr, PartlyFree> by_begin;
  tiling_.for_each_free_run(
      [&](const Block* block, const PageRun& run) FERRO_NO_THREAD_SAFETY_ANALYSIS {
        const Span& span = *block->span;
        const std::size_t end = span.page_slot(run.begin) + run.bytes / page_bytes_;
        for (std::size_t slot = span.page_slot(run.begin); slot < end;) {
          const std::size_t first = span.handle_begin(slot);
          const std::size_t pages = span.handle_end(slot) - first;
          const DevicePtr begin = span.base() + first * page_bytes_;
          const std::size_t next = std::min(end, first + pages);
          if (next - slot < pages && !span.is_borrowed(slot) &&
              exported_.around(begin) == exported_.all().end()) {
            by_begin.try_emplace(begin, PartlyFree{begin, span.page(slot), {pages, pages}})
                .first->second.use.used -= next - slot;
          }
          slot = next;
        }
        return true;
      });
  std::vector<PartlyFree> found;
  found.reserve(by_begin.size());
  for (const auto& [begin, partly] : by_begin) {
    found.push_back(partly);
  }
  return found;
}

// Where free pages stay the caller has waited for the device: ArenaScratch::split_partly_free.
bool ArenaHeap::move_used(const PartlyFree& partly, FreePages free_pages,
                          const CallContext& context) {
  if (!remove_leftovers()) {
    return false;
  }
  Vacating move{partly, free_pages, context, {}, {}, {}, {}};
  if (!begin_vacating(move)) {
    return false;
  }
  try {
    std::size_t pages = 0;
    for (const PageRun& run : move.backed) {
      pages += run.bytes / page_bytes_;
    }
    const CopyAfter after = move.splits() ? CopyAfter::kNothing : CopyAfter::kWholeDevice;
    if (context_.store.take_single_pages(pages, move.singles) != TakeResult::kOk ||
        copy_into(singles_of_used(move), move.pages.used, after) != Status::kOk ||
        exchange_backed(move) != Status::kOk) {
      give_up(move);
      return false;
    }
  } catch (const InternalError&) {
    // Some page may still be mapped: it must not be handed out again.
    throw;
  } catch (...) {
    give_up(move);
    throw;
  }
  finish_vacating(move);
  return true;
}

// Finds which pages are in use, and sees to it that nobody is given the others meanwhile. False: the
// handle is another one by now, or wholly in use or free.
bool ArenaHeap::begin_vacating(Vacating& move) {
  const DevicePtr begin = move.partly.begin;
  const DevicePtr end = begin + move.bytes(page_bytes_);
  const HeapLock lock(mutex_);
  const Span* span = tiling_.span_around(begin);
  if (span == nullptr || span->page(span->page_slot(begin)) != move.partly.handle ||
      exported_.around(begin) != exported_.all().end()) {
    return false;
  }
  tiling_.merge_all();
  move.pages = pages_of(move.partly);
  if (move.pages.used.empty() || move.pages.unused.empty()) {
    return false;
  }
  move.backed =
      move.splits() ? std::vector{PageRun{begin, move.bytes(page_bytes_)}} : move.pages.used;
  move.reserved = reserve_free_on(*span, begin, end);
  return true;
}

ArenaHeap::PageUse ArenaHeap::pages_of(const PartlyFree& partly) {
  const DevicePtr begin = partly.begin;
  const DevicePtr end = begin + partly.use.pages * page_bytes_;
  PageUse pages;
  DevicePtr at = begin;
  const auto add_used_until = [&](DevicePtr until) {
    if (at < until) {
      pages.used.push_back({at, distance(at, until)});
    }
  };
  for (const Block* block = tiling_.span_around(begin)->block_around(begin);
       block != nullptr && block->ptr < end; block = block->next) {
    const DevicePtr first = std::max(block->ptr, begin);
    const auto run =
        block->is_free()
            ? whole_pages_inside(first, distance(first, std::min(block->end(), end)), page_bytes_)
            : std::nullopt;
    if (run) {
      add_used_until(run->begin);
      pages.unused.push_back(*run);
      at = run->begin + run->bytes;
    }
  }
  add_used_until(end);
  return pages;
}

std::vector<HandleRange> ArenaHeap::singles_of_used(const Vacating& move) const {
  if (!move.splits()) {
    return move.singles;
  }
  std::vector<HandleRange> singles;
  for (const PageRun& run : move.pages.used) {
    const std::span<const HandleRange> behind =
        std::span(move.singles)
            .subspan(distance(move.partly.begin, run.begin) / page_bytes_, run.bytes / page_bytes_);
    singles.insert(singles.end(), behind.begin(), behind.end());
  }
  return singles;
}

void ArenaHeap::give_up(Vacating& move) {
  context_.store.put_cached(move.singles);
  const HeapLock lock(mutex_);
  for (Block* block : move.reserved) {
    tiling_.insert_merged(block);
  }
}

// Copies mapped ranges into handles, one behind the other, which are mapped nowhere before and after.
// The host waits for the copies, and before for all work of the device unless that was done.
Status ArenaHeap::copy_into(std::span<const HandleRange> fresh, std::span<const PageRun> from,
                            CopyAfter after) {
  Driver& driver = context_.driver;
  const std::size_t bytes = pages_in(fresh) * page_bytes_;
  const std::optional<DevicePtr> base = driver.reserve(bytes, 0);
  if (!base) {
    return Status::kOutOfMemory;
  }
  bool mapped = false;
  bool copying = false;
  const auto close = [&] {
    if (mapped && !driver.unmap(*base, bytes)) {
      const HeapLock lock(mutex_);
      leftovers_.push_back({*base, bytes});
    } else {
      driver.unreserve(*base, bytes);
    }
  };
  // What was begun writes to pages that others may have next. A driver that refuses a wait twice has
  // lost its context, and all memory with it.
  const auto await_copies = [&] {
    try {
      driver.wait_for_device();
    } catch (const DriverError&) {
    }
  };
  try {
    mapped = map(*base, fresh) == Status::kOk;
    if (mapped) {
      if (after == CopyAfter::kWholeDevice) {
        driver.wait_for_device();
      }
      DevicePtr to = *base;
      for (const PageRun& run : from) {
        copying = true;
        driver.copy(to, run.begin, run.bytes);
        to = to + run.bytes;
      }
      // What other streams were given since need not be over.
      if (const FenceRef copied = Fence::record(context_.events, kLegacyStream)) {
        copied->wait(driver);
      } else {
        driver.wait_for_device();
      }
    }
  } catch (const DriverError&) {
    if (copying) {
      await_copies();
    }
    close();
    throw;
  }
  close();
  return mapped ? Status::kOk : Status::kOutOfMemory;
}

// Puts the new handles in the place of the old one, where nothing is left behind the others. On
// failure the old handle is there as it was.
Status ArenaHeap::exchange_backed(const Vacating& move) {
  Driver& driver = context_.driver;
  const DevicePtr begin = move.partly.begin;
  const std::size_t bytes = move.bytes(page_bytes_);
  const auto tell = [&](MemoryEvent what, const char* reason) {
    const HeapLock lock(mutex_);
    notify_of_range(begin, bytes, what, move.context, {.reason = reason});
  };
  tell(MemoryEvent::kUnmapped, "vacated");
  if (!driver.unmap(begin, bytes)) {
    tell(MemoryEvent::kMapped, "put_back");
    return Status::kOutOfMemory;
  }
  std::size_t mapped_runs = 0;
  const auto restore = [&] {
    // Live bytes are at stake. If their memory can't be put back, there is no state to return to.
    bool restored = true;
    for (std::size_t i = 0; i < mapped_runs; ++i) {
      restored = restored && driver.unmap(move.backed[i].begin, move.backed[i].bytes);
    }
    try {
      restored = restored && driver.map(begin, bytes, move.partly.handle) == Status::kOk &&
                 driver.set_access(begin, bytes) == Status::kOk;
    } catch (const DriverError&) {
      restored = false;
    }
    FERRO_CHECK(restored, "the driver refused to map the pages of live blocks again");
    tell(MemoryEvent::kMapped, "put_back");
  };
  Status status = Status::kOk;
  try {
    std::span<const HandleRange> left = move.singles;
    for (const PageRun& run : move.backed) {
      const std::size_t pages = run.bytes / page_bytes_;
      status = map(run.begin, left.first(pages));
      if (status != Status::kOk) {
        break;
      }
      left = left.subspan(pages);
      ++mapped_runs;
    }
  } catch (const InternalError&) {
    throw;
  } catch (...) {
    restore();
    throw;
  }
  if (status != Status::kOk) {
    restore();
  }
  return status;
}

void ArenaHeap::finish_vacating(Vacating& move) {
  const DevicePtr begin = move.partly.begin;
  const PageRun all{begin, move.bytes(page_bytes_)};
  {
    const HeapLock lock(mutex_);
    Span& span = *tiling_.span_around(begin);
    tiling_.unback(span, all);
    forget_mapping(begin, all.bytes);
    std::span<const HandleRange> left = move.singles;
    for (const PageRun& run : move.backed) {
      const std::size_t pages = run.bytes / page_bytes_;
      tiling_.back(span, run.begin, left.first(pages));
      left = left.subspan(pages);
      remember_mapping(run.begin, move.context);
      notify_of_range(run.begin, run.bytes, MemoryEvent::kMapped, move.context,
                      {.reason = move.splits() ? "split" : name_of(LadderStep::kMoveLive),
                       .pages_moved = pages});
    }
    for (Block* block : move.reserved) {
      tiling_.insert_merged(block);
    }
    for (const PageRun& run : move.pages.unused) {
      if (!move.splits()) {
        Block* gap = tiling_.cut(span.block_around(run.begin), run.begin, run.bytes);
        tiling_.make_gap(gap);
      }
    }
  }
  const HandleRange vacated{move.partly.handle, move.partly.use.pages};
  if (move.splits()) {
    // To the driver: else the process would hold as much more as is split.
    context_.store.retire({vacated, nullptr});
  } else {
    context_.store.put_cached({&vacated, 1});
  }
}

}  // namespace ferro
