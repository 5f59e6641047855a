// The model's checks: after each step, at intervals, and at the end.
#pragma once

#include "model/device_model.h"

namespace ferro::testing {

inline void DeviceModel::check_step() {
  if (fault_struck()) {
    ever_failed_ = true;
    lost_reservations_ += std::string(FaultyApi::failed()) == "cuMemAddressFree" ? 1 : 0;
  }
  if (const std::string what = ledger_.violation(); !what.empty()) {
    throw ModelError("not so: " + what);
  }
  check_pages();
  check_order();
  expect(traffic_.captures_are_sound(), "captures go on");
}

inline void DeviceModel::check_order() {
  std::erase_if(promises_, [](const Promise& promise) {
    if (promise.after->complete()) {
      expect(promise.before->complete(), "the new owner waits for the use before");
      return true;
    }
    return false;
  });
}

inline void DeviceModel::check_pages() {
  const PageCounts pages = device_->store().counts();
  expect(SimGpu::used_pages() * kPageBytes == device_->report().held_bytes() + others_bytes_,
         "the device's pages are the allocator's");
  expect(pages.created - pages.released == pages.held, "created and released");
}

inline void DeviceModel::check_everything() {
  device_->report().check_invariants();
  const std::vector<SegmentView> segments = device_->report().segments(nullptr);
  auto next = live_.begin();
  for (const SegmentView& segment : segments) {
    for (const BlockView& block : segment.blocks) {
      if (block.state == BlockState::kLive) {
        expect(next != live_.end() && next->first == address_of(block.ptr) &&
                   next->second.size == block.size && next->second.pool == segment.pool,
               "the live blocks are the model's");
        ++next;
      }
    }
  }
  expect(next == live_.end(), "no live block is missing");
  for (const auto& [address, block] : live_) {
    if (block.shared) {
      check_shared(address, block);
    }
  }
  if (has_peer_) {
    check_peer();
  }
  check_places(segments);
  check_groups();
  record_.look(*device_, *graph_memory_, kPools);
  const StatTable table = device_->stats().read();
  expect(table[kBlocks][kAll].current == static_cast<std::int64_t>(live_.size()),
         "live blocks are counted");
  for (const auto& row : table) {
    for (const StatValue& value : row) {
      expect(value.peak >= value.current && value.current >= 0, "peaks");
      expect(value.increased - value.decreased == value.current, "sums");
    }
  }
}

// Checks that the pages which a heap records behind its addresses are mapped there.
inline void DeviceModel::check_places(const std::vector<SegmentView>& segments) {
  for (const SegmentView& segment : segments) {
    const Span& span = *addresses().find(segment.ptr);
    for (std::size_t at = 0; at < segment.size; at += kPageBytes) {
      const PageHandle handle = span.page(span.page_slot(segment.ptr + at));
      expect(ledger_.handle_behind(address_of(segment.ptr) + at) ==
                 static_cast<DriverLedger::Handle>(handle),
             "every page is where it is taken to be");
    }
  }
}

inline void DeviceModel::finish() {
  FaultyApi::reset();
  ledger_.begin_step();
  on_shortage_.relief = Relief::kNone;
  (*this)(OthersHold{0});
  check_everything();
  while (!running_.empty()) {
    end_graph(running_.begin()->first, true);
  }
  for (unsigned stream = 0; stream < Traffic::kStreams; ++stream) {
    (*this)(EndCapture{stream});
  }
  while (!live_.empty()) {
    (*this)(Free{0});
  }
  SimGpu::finish_all();
  check_step();
  traffic_.verify();
  for (unsigned pool = 1; pool < kPools.size(); ++pool) {
    while (release(kPools[pool])) {
    }
    expect(holds_[kPools[pool]] == 0, "as often as it was held");
  }
  device_->empty_cache();
  check_everything();
  check_step();
  expect(device_->report().segments(nullptr).empty() && SimGpu::used_pages() == 0,
         "nothing is left");
  expect(device_->exports().count() == 0, "no descriptor is left");
  recorded_ = record_.text(*device_);
  device_->set_observer(nullptr);
  graph_memory_.reset();
  device_.reset();
  check_empty();
}

inline void DeviceModel::check_empty() {
  // Addresses that the driver refuses to release are lost, which is harmless.
  const DriverLedger::Counts left = ledger_.counts();
  expect(left.reservations <= lost_reservations_, "addresses go back");
  expect(left.mappings == 0 && left.handles == 0, "pages go back");
}

}  // namespace ferro::testing
