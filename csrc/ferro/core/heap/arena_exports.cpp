// Blocks that other processes map, and access for peers. ipc/exports.h defines the terms.
#include "ferro/base/check.h"
#include "ferro/core/heap/heap.h"

#include <algorithm>
#include <set>

namespace ferro {

std::vector<Heap::Unit> Heap::units_of(const Span& span, DevicePtr begin, std::size_t bytes) {
  std::vector<Unit> units;
  const DevicePtr end = begin + bytes;
  DevicePtr at = span.base() + align_down(distance(span.base(), begin), page_bytes_);
  while (at < end) {
    const std::size_t slot = span.page_slot(at);
    if (const auto kept = exported_.around(at); kept != exported_.all().end()) {
      units.push_back({kept->first, kept->second});
    } else if (span.page(slot) != kNoPage) {
      const std::size_t first = span.handle_begin(slot);
      units.push_back({span.base() + first * page_bytes_,
                       {.handle = span.page(slot), .pages = span.handle_end(slot) - first}});
    } else {
      return {};
    }
    at = units.back().begin + units.back().unit.pages * page_bytes_;
  }
  return units;
}

bool Heap::is_any_borrowed(const Span& span, std::span<const Unit> units) {
  return std::ranges::any_of(
      units, [&](const Unit& unit) { return span.is_borrowed(span.page_slot(unit.begin)); });
}

ExportResult Heap::export_block(Span& span, DevicePtr ptr, SharedRange* out) {
  std::vector<Unit> units;
  {
    const HeapLock lock(mutex_);
    const Block* block = live_around(span, ptr);
    if (block == nullptr) {
      return ExportResult::kNotLive;
    }
    units = units_of(span, block->ptr, block->size);
    if (units.empty()) {
      return ExportResult::kAsleep;
    }
    if (is_any_borrowed(span, units)) {
      return ExportResult::kBorrowed;
    }
  }
  if (!context_.driver.exports()) {
    return ExportResult::kNotExportable;
  }
  // Without the lock: handles leave only in climbs, and the caller holds the climb lock.
  std::vector<PageHandle> handles;
  for (const Unit& unit : units) {
    if (unit.unit.id == 0) {
      handles.push_back(unit.unit.handle);
    }
  }
  const std::vector<ExportTable::Entry> added = context_.exports.add(handles);
  auto next = added.begin();
  out->begin = units.front().begin;
  out->units.clear();
  for (Unit& unit : units) {
    if (unit.unit.id == 0) {
      unit.unit.id = next->id;
      unit.unit.descriptor = next->descriptor;
      ++next;
      const HeapLock lock(mutex_);
      exported_.put(unit.begin, unit.unit);
    }
    out->units.push_back({unit.unit.id, unit.unit.pages * page_bytes_, unit.unit.descriptor});
  }
  return ExportResult::kOk;
}

bool Heap::change_pins(const Span& span, DevicePtr begin, std::size_t bytes, int by) {
  const HeapLock lock(mutex_);
  std::vector<Unit> units = units_of(span, begin, bytes);
  if (is_any_borrowed(span, units)) {
    return false;
  }
  for (Unit& unit : units) {
    unit.unit.pins += by;
    FERRO_CHECK(unit.unit.pins >= 0);
    // Without a pin or an export it is an ordinary handle again.
    if (unit.unit.pins == 0 && unit.unit.id == 0) {
      exported_.erase(unit.begin);
    } else {
      exported_.put(unit.begin, unit.unit);
    }
  }
  return !units.empty();
}

// Mapping by mapping: on two H200 the driver refused calls for 98 to 922 MiB of mappings with
// CUDA_ERROR_INVALID_VALUE, and accepts single ones. A call costs the same per handle.
void Heap::grant(DeviceId to) {
  std::vector<PageRun> mappings;
  std::vector<PageRun> aliased;
  {
    const HeapLock lock(mutex_);
    for (const auto& [base, span] : tiling_.spans()) {
      for (std::size_t slot = 0; slot < span->page_slots();) {
        const bool is_mapped = span->page(slot) != kNoPage;
        const std::size_t end = is_mapped ? span->handle_end(slot) : slot + 1;
        if (is_mapped) {
          mappings.push_back({base + slot * page_bytes_, (end - slot) * page_bytes_});
        }
        slot = end;
      }
      for (const Block* block = span->first; block != nullptr; block = block->next) {
        if (block->state == BlockState::kAliased && !unmapped_aliases_.contains(block->ptr)) {
          aliased.push_back({block->ptr, block->size});
        }
      }
    }
  }
  Driver& driver = context_.driver;
  for (const PageRun& mapping : mappings) {
    driver.grant(mapping.begin, mapping.bytes, to);
  }
  // The heap does not know the handles of aliased blocks. The driver refuses to cut a mapping, so
  // the shortest range that it accepts is one.
  for (const PageRun& run : aliased) {
    for (std::size_t done = 0; done < run.bytes;) {
      std::size_t bytes = page_bytes_;
      while (done + bytes < run.bytes && !driver.try_grant(run.begin + done, bytes, to)) {
        bytes += page_bytes_;
      }
      if (done + bytes == run.bytes) {
        driver.grant(run.begin + done, bytes, to);
      }
      done += bytes;
    }
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
    FERRO_CHECK(unit.id != 0 ? context_.exports.contains(unit.id) : unit.pins > 0);
    end = begin + unit.pages * page_bytes_;
  }
  // Each handle backs one contiguous range.
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
