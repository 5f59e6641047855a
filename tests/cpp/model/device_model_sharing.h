// The model's sharing: blocks with other processes, all memory with a peer; and destroyed streams.
#pragma once

#include "model/device_model.h"

#include <fcntl.h>

namespace ferro::testing {

inline void DeviceModel::operator()(const Export& i) {
  if (live_.empty()) {
    return;
  }
  const auto found = nth_live(i.block);
  Block& block = found->second;
  const DevicePtr ptr{found->first};
  Span& span = *addresses().find(ptr);
  const auto calls = [] {
    return std::array{SimGpu::calls("cuCtxSynchronize"), SimGpu::calls("cuMemMap"),
                      SimGpu::calls("cuMemUnmap"), SimGpu::calls("cuMemCreate")};
  };
  const auto calls_before = calls();
  SharedRange range;
  std::optional<ExportResult> result;
  guarded([&] { result = device_->export_block(span, ptr, &range); });
  expect(calls() == calls_before, "no handle is exchanged, and nothing is waited for");
  if (!result) {
    return;
  }
  switch (*result) {
    case ExportResult::kNotLive:
    case ExportResult::kAsleep:
    case ExportResult::kNotExportable:
      expect(false, "a live block can be shared");
      return;
    case ExportResult::kBorrowed:
      expect((traffic_.captures() != 0 || block.exposed) && !block.shared,
             "a capture lends the block its memory");
      return;
    case ExportResult::kOk:
      break;
  }
  expect(!range.units.empty(), "it lies on handles");
  if (!block.shared) {
    block.shared = Shared{range, {}};
    std::uint64_t at = address_of(range.begin);
    for (const SharedUnit& unit : range.units) {
      block.shared->handles.push_back(ledger_.handle_behind(at));
      at += unit.bytes;
    }
  }
  const SharedRange& first = block.shared->range;
  expect(range.begin == first.begin && range.units.size() == first.units.size(),
         "the importer sees what is written");
  for (std::size_t unit = 0; unit < range.units.size(); ++unit) {
    expect(range.units[unit].id == first.units[unit].id &&
               range.units[unit].bytes == first.units[unit].bytes,
           "the same units as the first time");
  }
  check_shared(found->first, block);
}

// Checks that the description of a shared block still holds.
inline void DeviceModel::check_shared(std::uint64_t address, const Block& block) {
  const Shared& shared = *block.shared;
  std::uint64_t at = address_of(shared.range.begin);
  expect(at <= address, "the first unit begins before the block");
  for (std::size_t i = 0; i < shared.handles.size(); ++i) {
    const SharedUnit& unit = shared.range.units[i];
    for (std::size_t offset = 0; offset < unit.bytes; offset += kPageBytes) {
      expect(shared.handles[i] != 0 && ledger_.handle_behind(at + offset) == shared.handles[i],
             "a shared block keeps its handles");
    }
    expect(unit.descriptor >= 0 && fcntl(unit.descriptor, F_GETFD) >= 0 &&
               device_->exports().contains(unit.id),
           "its descriptors are open");
    at += unit.bytes;
  }
  expect(at >= address + block.size, "the units cover the block");
}

inline void DeviceModel::operator()(const AddPeer&) {
  has_peer_ = false;  // also when adding it again fails
  guarded([this] {
    device_->add_peer(1);
    traffic_.use_second_device();
    has_peer_ = true;
  });
}

inline void DeviceModel::check_peer() {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = 1;
  for (const SegmentView& segment : device_->report().segments(nullptr)) {
    for (std::size_t at = 0; at < segment.size; at += kPageBytes) {
      unsigned long long flags = 0;
      SimGpu::expect(SimGpu::api().mem_get_access(&flags, &location, address_of(segment.ptr) + at));
      expect(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "the peer reaches every page");
    }
  }
}

// A program destroys a stream only when nothing but its own blocks waits for it.
inline bool DeviceModel::may_go() {
  if (!world_.short_streams || !traffic_.has_spare_stream() || traffic_.captures() != 0) {
    return false;
  }
  const auto uses = [](const Use& use) { return use.stream == Traffic::kShortStream; };
  for (const auto& [address, block] : live_) {
    if (std::ranges::any_of(block.uses, uses)) {
      return false;
    }
  }
  // Frees deferred by captures or faults get their events now.
  bool collected = false;
  guarded([&] {
    device_->collect_pending();
    collected = true;
  });
  return collected && !fault_struck();
}

inline void DeviceModel::operator()(const DestroyStream&) {
  if (!may_go()) {
    return;
  }
  for (auto& [address, block] : live_) {
    if (block.stream == Traffic::kShortStream && block.tag != 0) {
      traffic_.read(Traffic::kShortStream, DevicePtr{address}, block.size, block.tag);
    }
  }
  const auto last_work = std::make_shared<Event>(traffic_.record(Traffic::kShortStream));
  for (auto& [address, block] : live_) {
    if (block.stream == Traffic::kShortStream) {
      block.stream = kGone;
      block.last_work = last_work;
    }
  }
  for (const bool large : {false, true}) {
    late_uses_.erase({Traffic::kShortStream, large});  // that stream makes no further requests
  }
  ledger_.lose(raw(traffic_.replace_short_stream()));
}

}  // namespace ferro::testing
