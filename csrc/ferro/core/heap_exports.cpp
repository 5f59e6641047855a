// Blocks that other processes map, and access for peers. See exports.h for the words.
#include "ferro/base/check.h"
#include "ferro/core/heap.h"
#include "ferro/core/heap_blocks.h"
#include "ferro/driver/error.h"

#include <algorithm>

namespace ferro {
namespace {

// One call of the importer and one descriptor for each.
constexpr std::size_t kMaxUnits = 16;
// What lies on more pages is joined behind one handle also where it lies on a few large ones,
// because each costs the importer as much as a whole block.
constexpr std::size_t kMaxPages = 16;

}  // namespace

// The exported unit that contains an address, if any.
std::map<DevicePtr, ExportedUnit>::iterator Heap::exported_around(DevicePtr ptr) {
  auto unit = exported_.upper_bound(ptr);
  if (unit == exported_.begin()) {
    return exported_.end();
  }
  --unit;
  return ptr < unit->first + unit->second.pages * page_bytes_ ? unit : exported_.end();
}

// The handle behind an address that was not exported.
Heap::Unit Heap::unit_around(const Span& span, DevicePtr ptr) const {
  const std::size_t slot = span.page_slot(ptr);
  const std::size_t first = span.handle_begin(slot);
  return {span.base() + first * page_bytes_, {span.page(slot), span.handle_end(slot) - first, 0}};
}

// The handles behind a block, in order of address. Only the first and the last may reach beyond it.
std::vector<Heap::Unit> Heap::units_behind(const Block& block) {
  std::vector<Unit> units;
  const Span& span = *block.span;
  DevicePtr at = span.base() + align_down(distance(span.base(), block.ptr), page_bytes_);
  while (at < block.end()) {
    const auto exported = exported_around(at);
    if (exported != exported_.end()) {
      units.push_back({exported->first, exported->second});
    } else {
      units.push_back(unit_around(span, at));
    }
    at = units.back().begin + units.back().unit.pages * page_bytes_;
  }
  return units;
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

// Live blocks move in no way that a program could see: the bytes are the same behind the same
// addresses, only the handle is another. Everything on the device has to be done for that.
ExportResult Heap::join(Span& span, std::span<const Unit> units) {
  if (units.size() <= 1) {
    return ExportResult::kOk;
  }
  if (context_.captures.load(std::memory_order_relaxed) != 0 || is_capturing()) {
    return ExportResult::kCapturing;
  }
  const DevicePtr begin = units.front().begin;
  const std::size_t pages = pages_of(units);
  const std::size_t bytes = pages * page_bytes_;
  PageHandle fresh = kNoPage;
  TakeResult taken = context_.store.take_run(pages, &fresh);
  if (taken != TakeResult::kOk && context_.store.trim(~std::size_t{0}) != 0) {
    taken = context_.store.take_run(pages, &fresh);
  }
  if (taken != TakeResult::kOk) {
    return ExportResult::kOutOfMemory;
  }
  try {
    if (copy_into(fresh, begin, bytes) != Status::kOk ||
        exchange(begin, bytes, units, fresh) != Status::kOk) {
      context_.store.release_run(fresh, pages);
      return ExportResult::kOutOfMemory;
    }
  } catch (const DriverError&) {
    context_.store.release_run(fresh, pages);
    throw;
  }
  for (const Unit& old : units) {
    if (exported_.erase(old.begin) != 0) {
      context_.exports.retire(old.unit.id);
      context_.store.release_run(old.unit.handle, old.unit.pages);
    } else {
      context_.store.put(std::vector(old.unit.pages, old.unit.handle));
    }
  }
  for (std::size_t i = 0; i < pages; ++i) {
    span.set_page(span.page_slot(begin) + i, fresh);
  }
  exported_.emplace(begin, ExportedUnit{fresh, pages, 0});
  return ExportResult::kOk;
}

// Copies a mapped range into a page that is mapped nowhere, behind all work of the device.
Status Heap::copy_into(PageHandle fresh, DevicePtr from, std::size_t bytes) {
  Driver& driver = context_.driver;
  const std::optional<DevicePtr> base = driver.reserve(bytes, 0);
  if (!base) {
    return Status::kOutOfMemory;
  }
  bool mapped = false;
  const auto close = [&]() FERRO_REQUIRES(mutex_) {
    if (mapped && !driver.unmap(*base, bytes)) {
      leftovers_.push_back({*base, bytes});
    } else {
      driver.unreserve(*base, bytes);
    }
  };
  Status status = Status::kOutOfMemory;
  try {
    status = driver.map(*base, bytes, fresh);
    mapped = status == Status::kOk;
    if (mapped) {
      status = driver.set_access(*base, bytes);
    }
    if (status == Status::kOk) {
      driver.wait_for_device();
      driver.copy(*base, from, bytes);
      driver.wait_for_device();
    }
  } catch (const DriverError&) {
    close();
    throw;
  }
  close();
  return status;
}

// Removes temporary mappings that the driver refused to remove when it should have.
void Heap::drop_leftovers() {
  std::erase_if(leftovers_, [this](const PageRun& run) {
    return context_.driver.unmap(run.begin, run.bytes) &&
           context_.driver.unreserve(run.begin, run.bytes);
  });
}

// Puts `fresh` behind the addresses of `units`. On failure they are as they were.
Status Heap::exchange(DevicePtr begin, std::size_t bytes, std::span<const Unit> units,
                      PageHandle fresh) {
  Driver& driver = context_.driver;
  tell_of_range(begin, bytes, MemoryEvent::kUnmapped, nullptr, {.reason = "shared"});
  bool fresh_is_mapped = false;
  const auto restore = [&]() FERRO_REQUIRES(mutex_) {
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
    tell_of_range(begin, bytes, MemoryEvent::kMapped, nullptr, {.reason = "put_back"});
  };
  if (!driver.unmap(begin, bytes)) {
    tell_of_range(begin, bytes, MemoryEvent::kMapped, nullptr, {.reason = "put_back"});
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
  tell_of_range(begin, bytes, MemoryEvent::kMapped, nullptr, {.reason = "shared"});
  return Status::kOk;
}

ExportResult Heap::export_block(Span& span, DevicePtr ptr, SharedRange* out) {
  const SpinLock lock(mutex_);
  Block* block = live_around(span, ptr);
  if (block == nullptr) {
    return ExportResult::kNotLive;
  }
  if (!is_paged(kind_)) {
    out->begin = span.base();
    return ExportResult::kSegment;
  }
  if (!context_.driver.exports()) {
    return ExportResult::kNotExportable;
  }
  std::vector<Unit> units = units_behind(*block);
  const std::span<const Unit> inside = units_of_its_own(*block, units);
  const bool too_many = units.size() > kMaxUnits;
  // PyTorch's own allocator opens units of one size alone.
  const bool sizes_differ = std::ranges::any_of(
      units, [&](const Unit& unit) { return unit.unit.pages != units.front().unit.pages; });
  // Who has opened the units as they are would not see what is written to others. Of a block that
  // was never shared one or the other may have been, for its neighbours.
  const bool is_shared =
      std::ranges::all_of(units, [](const Unit& unit) { return unit.unit.id != 0; });
  if (too_many || (!is_shared && (sizes_differ || pages_of(inside) > kMaxPages))) {
    ExportResult joined = join(span, inside);
    if (joined == ExportResult::kOutOfMemory) {
      // Part by part it takes less room, as the old pages of one part make room for the next.
      const std::size_t part = ceil_div(inside.size(), kMaxUnits - 2);
      joined = ExportResult::kOk;
      for (std::size_t i = 0; i < inside.size() && joined == ExportResult::kOk; i += part) {
        joined = join(span, inside.subspan(i, std::min(part, inside.size() - i)));
      }
    }
    if (joined != ExportResult::kOk && too_many) {
      return joined;
    }
    units = units_behind(*block);
  }
  SharedRange range{units.front().begin, {}};
  for (Unit& unit : units) {
    if (unit.unit.id == 0) {
      unit.unit.id = context_.exports.add(context_.driver.export_page(unit.unit.handle));
      exported_[unit.begin] = unit.unit;
    }
    range.units.push_back(
        {unit.unit.id, unit.unit.pages * page_bytes_, context_.exports.descriptor(unit.unit.id)});
  }
  *out = std::move(range);
  return ExportResult::kOk;
}

void Heap::grant(DeviceId to) {
  const SpinLock lock(mutex_);
  if (!is_paged(kind_)) {
    return;
  }
  for (const std::unique_ptr<Span>& span : spans_) {
    for (std::size_t slot = 0; slot < span->page_slots();) {
      std::size_t end = slot;
      while (end < span->page_slots() && span->page(end) != kNoPage) {
        ++end;
      }
      if (end > slot) {
        context_.driver.grant(span->base() + slot * page_bytes_, (end - slot) * page_bytes_, to);
      }
      slot = end + 1;
    }
  }
}

// The parts of a hole that may move.
void Heap::append_unpinned(const Hole& hole, std::vector<Hole>& parts) {
  DevicePtr begin = hole.run.begin;
  const DevicePtr end = begin + hole.run.bytes;
  const auto first = exported_around(begin);
  for (auto unit = first != exported_.end() ? first : exported_.lower_bound(begin);
       unit != exported_.end() && unit->first < end; ++unit) {
    if (begin < unit->first) {
      parts.push_back({hole.block, {begin, distance(begin, unit->first)}});
    }
    begin = unit->first + unit->second.pages * page_bytes_;
  }
  if (begin < end) {
    parts.push_back({hole.block, {begin, distance(begin, end)}});
  }
}

// The exported units that carry nothing but free memory.
std::vector<Heap::Hole> Heap::free_exports() {
  std::vector<Hole> found;
  if (exported_.empty()) {
    return found;
  }
  std::vector<Block*> free_blocks;
  for_each_block([&](Block& block) {
    if (block.is_free()) {
      free_blocks.push_back(&block);
    }
  });
  for (Block* block : free_blocks) {
    for (auto unit = exported_.lower_bound(block->ptr); unit != exported_.end(); ++unit) {
      const std::size_t bytes = unit->second.pages * page_bytes_;
      if (unit->first + bytes > block->end()) {
        break;
      }
      found.push_back({block, {unit->first, bytes}});
    }
  }
  return found;
}

// The host has waited for all work on it. False: the driver refused.
bool Heap::give_back_export(const Hole& hole, const CallContext& context) {
  if (take_out(hole, context).empty()) {
    return false;
  }
  const auto unit = exported_.find(hole.run.begin);
  context_.exports.retire(unit->second.id);
  context_.store.release_run(unit->second.handle, unit->second.pages);
  exported_.erase(unit);
  return true;
}

}  // namespace ferro
