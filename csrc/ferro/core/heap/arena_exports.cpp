// Blocks that other processes map, and access for peers. See sharing/exports.h for the words.
#include "ferro/base/check.h"
#include "ferro/core/heap/heap.h"
#include "ferro/core/policy/export_units.h"
#include "ferro/driver/error.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace ferro {

// The handle behind an address that was not exported.
Heap::Unit Heap::unit_around(const Span& span, DevicePtr ptr) const {
  const std::size_t slot = span.page_slot(ptr);
  const std::size_t first = span.handle_begin(slot);
  return {span.base() + first * page_bytes_,
          {span.page(slot), span.handle_end(slot) - first, 0, 0}};
}

// The handles behind a block, in order of address. Only the first and the last may reach beyond it.
std::vector<Heap::Unit> Heap::units_behind(const Block& block) {
  return units_of(*block.span, block.ptr, block.size);
}

// Does nothing but the block, and free memory, lie on the unit?
bool Heap::is_alone_on(const Block& block, const Unit& unit) const {
  const auto is_free = [](const Block& other) {
    return other.is_free() || other.state == BlockState::kUnmerged;
  };
  const DevicePtr end = unit.begin + unit.unit.pages * page_bytes_;
  for (const Block* other = block.prev; other != nullptr && unit.begin < other->end();
       other = other->prev) {
    if (!is_free(*other)) {
      return false;
    }
  }
  for (const Block* other = block.next; other != nullptr && other->ptr < end; other = other->next) {
    if (!is_free(*other)) {
      return false;
    }
  }
  return true;
}

std::span<const Heap::Unit> Heap::units_of_its_own(const Block& block,
                                                   std::span<const Unit> units) const {
  if (!is_alone_on(block, units.back())) {
    units = units.first(units.size() - 1);
  }
  return units.empty() || is_alone_on(block, units.front()) ? units : units.subspan(1);
}

std::size_t Heap::pages_of(std::span<const Unit> units) {
  std::size_t pages = 0;
  for (const Unit& unit : units) {
    pages += unit.unit.pages;
  }
  return pages;
}

// So that nobody is given memory that is about to be copied.
std::vector<Block*> Heap::reserve_free_on(const Span& span, DevicePtr begin, DevicePtr end) {
  std::vector<Block*> reserved;
  tiling_.merge_all();
  for (Block* block = span.block_around(begin); block != nullptr && block->ptr < end;
       block = block->next) {
    if (block->is_free()) {
      tiling_.take(block);
      block->state = BlockState::kTransit;
      reserved.push_back(block);
    }
  }
  return reserved;
}

// Nobody may be asked about a stream that may be gone.
bool Heap::may_wait_for_rest() {
  return context_.captures.load(std::memory_order_relaxed) == 0 &&
         !(stream_lasts() && is_capturing()) && !context_.driver.captures(kLegacyStream);
}

// Live blocks move in no way that a program could see: the bytes are the same behind the same
// addresses, only the handle is another. Everything on the device was done before that; the free
// memory on these handles is set aside meanwhile.
ExportResult Heap::join(Span& span, std::span<const Unit> units) {
  if (units.size() <= 1) {
    return ExportResult::kOk;
  }
  if (!may_wait_for_rest()) {
    return ExportResult::kCapturing;
  }
  if (!remove_leftovers()) {
    return ExportResult::kOutOfMemory;
  }
  const DevicePtr begin = units.front().begin;
  const std::size_t pages = pages_of(units);
  const std::size_t bytes = pages * page_bytes_;
  PageHandle fresh = kNoPage;
  TakeResult taken = context_.store.create_one(pages, &fresh);
  if (taken != TakeResult::kOk && context_.store.trim(~std::size_t{0}) != 0) {
    taken = context_.store.create_one(pages, &fresh);
  }
  if (taken != TakeResult::kOk) {
    return ExportResult::kOutOfMemory;
  }
  std::vector<Block*> reserved;
  {
    const HeapLock lock(mutex_);
    reserved = reserve_free_on(span, begin, begin + bytes);
  }
  // What was freed beside the block since the host waited for the device may still be in use.
  Epoch freed = kUnused;
  for (const Block* block : reserved) {
    freed = std::max(freed, block->freed);
  }
  const auto give_up = [&] {
    const HeapLock lock(mutex_);
    for (Block* block : reserved) {
      tiling_.insert_merged(block);
    }
    context_.store.retire({{fresh, pages}, nullptr});
  };
  if (pool_ != kDefaultPool) {
    freed = context_.timeline.now();  // graphs have replayed there since
  }
  try {
    if (!context_.timeline.wait(freed, DeviceTimeline::kLongestWait)) {
      give_up();
      return ExportResult::kBusy;
    }
    const HandleRange into{fresh, pages};
    const PageRun from{begin, bytes};
    const bool copied = copy_into(into, from) == Status::kOk;
    if (copied) {
      // The host has waited for the device since these handles moved last, so none of them keeps an
      // older mapping. What can fail comes before the exchange, after which nothing may.
      context_.stale.remove_passed();
    }
    if (!copied || exchange(begin, bytes, units, fresh) != Status::kOk) {
      give_up();
      return ExportResult::kOutOfMemory;
    }
  } catch (const DriverError&) {
    give_up();
    throw;
  }
  const HeapLock lock(mutex_);
  for (const Unit& old : units) {
    const HandleRange range{old.unit.handle, old.unit.pages};
    if (old.unit.id != 0 || exported_.find(old.begin) != nullptr) {
      exported_.erase(old.begin);
      context_.exports.retire(old.unit.id);
      context_.store.retire({range, nullptr});
    } else {
      context_.store.put_cached({&range, 1});
    }
  }
  tiling_.unback(span, {begin, bytes});
  const HandleRange joined{fresh, pages};
  tiling_.back(span, begin, {&joined, 1});
  exported_.put(begin, {fresh, pages, 0, 0});
  for (Block* block : reserved) {
    tiling_.insert_merged(block);
  }
  return ExportResult::kOk;
}

bool Heap::remove_leftovers() {
  std::vector<PageRun> leftovers;
  {
    const HeapLock lock(mutex_);
    leftovers = std::exchange(leftovers_, {});
  }
  if (leftovers.empty()) {
    return true;
  }
  std::erase_if(leftovers, [this](const PageRun& run) {
    return context_.driver.unmap(run.begin, run.bytes) &&
           context_.driver.unreserve(run.begin, run.bytes);
  });
  const HeapLock lock(mutex_);
  leftovers_.insert(leftovers_.end(), leftovers.begin(), leftovers.end());
  return leftovers_.empty();
}

// Puts `fresh` behind the addresses of `units`. On failure they are as they were.
Status Heap::exchange(DevicePtr begin, std::size_t bytes, std::span<const Unit> units,
                      PageHandle fresh) {
  Driver& driver = context_.driver;
  const auto tell = [&](MemoryEvent what, const char* reason) {
    const HeapLock lock(mutex_);
    notify_of_range(begin, bytes, what, nullptr, {.reason = reason});
  };
  tell(MemoryEvent::kUnmapped, "shared");
  context_.observer.deliver_within_climb();
  bool fresh_is_mapped = false;
  const auto restore = [&] {
    // The block is live. If its memory can't be put back, there is no state to return to.
    bool restored = !fresh_is_mapped || driver.unmap(begin, bytes);
    try {
      for (const Unit& unit : units) {
        restored = restored && driver.map(unit.begin, unit.unit.pages * page_bytes_,
                                          unit.unit.handle) == Status::kOk;
      }
      restored = restored && driver.set_access(begin, bytes) == Status::kOk;
    } catch (const DriverError&) {
      restored = false;
    }
    FERRO_CHECK(restored, "the driver refused to map the pages of a shared block again");
    tell(MemoryEvent::kMapped, "put_back");
  };
  if (!driver.unmap(begin, bytes)) {
    tell(MemoryEvent::kMapped, "put_back");
    return Status::kOutOfMemory;
  }
  Status status = Status::kOutOfMemory;
  try {
    status = driver.map(begin, bytes, fresh);
    fresh_is_mapped = status == Status::kOk;
    if (fresh_is_mapped) {
      status = driver.set_access(begin, bytes);
    }
  } catch (const DriverError&) {
    restore();
    throw;
  }
  if (status != Status::kOk) {
    restore();
    return status;
  }
  tell(MemoryEvent::kMapped, "shared");
  return Status::kOk;
}

// Of the block: the handles behind it, and those of them that carry nothing else.
Join Heap::plan_export_of(const Block& block, std::vector<Unit>& units, std::vector<Unit>& inside) {
  units = units_behind(block);
  const std::span<const Unit> own = units_of_its_own(block, units);
  inside.assign(own.begin(), own.end());
  ExportView view{units.size(), pages_of(inside), true, true, false};
  for (const Unit& unit : units) {
    view.same_size = view.same_size && unit.unit.pages == units.front().unit.pages;
    view.all_exported = view.all_exported && unit.unit.id != 0;
    view.some_pinned = view.some_pinned || unit.unit.pins != 0;
  }
  return plan_export(view);
}

std::optional<ExportResult> Heap::wants_exchange(Span& span, DevicePtr ptr) {
  std::vector<Unit> units;
  std::vector<Unit> inside;
  {
    const HeapLock lock(mutex_);
    const Block* block = live_around(span, ptr);
    if (block == nullptr || plan_export_of(*block, units, inside) == Join::kNo ||
        inside.size() <= 1 || !context_.driver.exports()) {
      return std::nullopt;
    }
  }
  return may_wait_for_rest() ? ExportResult::kOk : ExportResult::kCapturing;
}

ExportResult Heap::export_block(Span& span, DevicePtr ptr, const ExportRules& rules,
                                SharedRange* out) {
  std::vector<Unit> units;
  std::vector<Unit> inside;
  Block* block = nullptr;
  Join planned = Join::kNo;
  {
    const HeapLock lock(mutex_);
    block = live_around(span, ptr);
    if (block == nullptr) {
      return ExportResult::kNotLive;
    }
    if (std::ranges::any_of(units_behind(*block), [&](const Unit& unit) {
          return span.is_borrowed(span.page_slot(unit.begin));
        })) {
      return ExportResult::kCapturing;  // another handle may come there at the end of the capture
    }
    planned = plan_export_of(*block, units, inside);
  }
  if (!context_.driver.exports()) {
    return ExportResult::kNotExportable;
  }
  ExportResult joined = planned == Join::kNo ? ExportResult::kKept : rules.exchange;
  if (joined == ExportResult::kOk) {
    joined = join(span, inside);
    if (joined == ExportResult::kOutOfMemory) {
      // Part by part it takes less room, as the old pages of one part make room for the next.
      const std::size_t part = units_of_a_part(inside.size());
      joined = ExportResult::kOk;
      for (std::size_t i = 0; i < inside.size() && joined == ExportResult::kOk; i += part) {
        joined = join(span, std::span(inside).subspan(i, std::min(part, inside.size() - i)));
      }
    }
  }
  {
    const HeapLock lock(mutex_);
    units = units_behind(*block);
  }
  if (units.size() > rules.max_units) {
    return joined == ExportResult::kOk ? ExportResult::kKept : joined;
  }
  // Handles leave in climbs alone, of which this is one.
  SharedRange range{units.front().begin, {}};
  for (Unit& unit : units) {
    if (unit.unit.id == 0) {
      unit.unit.id = context_.exports.add(context_.driver.export_page(unit.unit.handle));
      const HeapLock lock(mutex_);
      exported_.put(unit.begin, unit.unit);
    }
    range.units.push_back(
        {unit.unit.id, unit.unit.pages * page_bytes_, context_.exports.descriptor(unit.unit.id)});
  }
  *out = std::move(range);
  return ExportResult::kOk;
}

// The handles behind a range; empty if there is none behind some page of it.
std::vector<Heap::Unit> Heap::units_of(const Span& span, DevicePtr begin, std::size_t bytes) {
  std::vector<Unit> units;
  const DevicePtr end = begin + bytes;
  DevicePtr at = span.base() + align_down(distance(span.base(), begin), page_bytes_);
  while (at < end) {
    const auto kept = exported_.around(at);
    if (kept == exported_.all().end() && span.page(span.page_slot(at)) == kNoPage) {
      return {};
    }
    units.push_back(kept != exported_.all().end() ? Unit{kept->first, kept->second}
                                                  : unit_around(span, at));
    at = units.back().begin + units.back().unit.pages * page_bytes_;
  }
  return units;
}

bool Heap::change_pins(const Span& span, DevicePtr begin, std::size_t bytes, int by) {
  const HeapLock lock(mutex_);
  std::vector<Unit> units = units_of(span, begin, bytes);
  if (std::ranges::any_of(
          units, [&](const Unit& unit) { return span.is_borrowed(span.page_slot(unit.begin)); })) {
    return false;  // as in export_block
  }
  for (Unit& unit : units) {
    unit.unit.pins += by;
    FERRO_CHECK(unit.unit.pins >= 0);
    // Without a pin or an export it is a handle like others again.
    if (unit.unit.pins == 0 && unit.unit.id == 0) {
      exported_.erase(unit.begin);
    } else {
      exported_.put(unit.begin, unit.unit);
    }
  }
  return !units.empty();
}

void Heap::grant(DeviceId to) {
  std::vector<PageRun> mapped;
  {
    const HeapLock lock(mutex_);
    for (const auto& [base, span] : tiling_.spans()) {
      for (std::size_t slot = 0; slot < span->page_slots();) {
        std::size_t end = slot;
        while (end < span->page_slots() && span->page(end) != kNoPage) {
          ++end;
        }
        if (end > slot) {
          mapped.push_back({base + slot * page_bytes_, (end - slot) * page_bytes_});
        }
        slot = end + 1;
      }
      for (const Block* block = span->first; block != nullptr; block = block->next) {
        if (block->state == BlockState::kAliased) {
          mapped.push_back({block->ptr, block->size});
        }
      }
    }
  }
  for (const PageRun& run : mapped) {
    context_.driver.grant(run.begin, run.bytes, to);
  }
}

void Heap::check_exports() {
  DevicePtr end{};
  for (const auto& [begin, unit] : exported_.all()) {
    const Span* span = tiling_.span_around(begin);
    FERRO_CHECK(span != nullptr && unit.pages > 0 && begin >= end);
    for (std::size_t i = 0; i < unit.pages; ++i) {
      FERRO_CHECK(span->page(span->page_slot(begin) + i) == unit.handle);
    }
    FERRO_CHECK(unit.id == 0 || context_.exports.descriptor(unit.id) >= 0);
    FERRO_CHECK(unit.id != 0 || unit.pages > 1 || unit.pins > 0);
    end = begin + unit.pages * page_bytes_;
  }
  // A handle that was seen and left does not come again.
  std::set<PageHandle> handles;
  for (const auto& [base, span] : tiling_.spans()) {
    PageHandle last = kNoPage;
    for (std::size_t slot = 0; slot < span->page_slots(); ++slot) {
      const PageHandle handle = span->page(slot);
      FERRO_CHECK(handle == kNoPage || handle == last || handles.insert(handle).second);
      last = handle;
    }
  }
}

}  // namespace ferro
