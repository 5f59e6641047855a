#include "ferro/adapter/peak/live_blocks.h"

#include <algorithm>
#include <utility>

namespace ferro {

BlockKind LiveBlock::kind(bool in_graph_pool) const {
  if (declared < BlockKind::kGraphs) {
    return declared;
  }
  if (in_graph_pool) {
    return BlockKind::kGraphs;
  }
  if (made_with_gradients && !made_in_backward && freed_in_backward) {
    return BlockKind::kActivations;
  }
  return !live && freed_phase == phase ? BlockKind::kTemporaries : declared;
}

std::shared_ptr<LiveBlock> LiveBlocks::add(std::size_t address, LiveBlock block) {
  std::shared_ptr<LiveBlock> replaced = remove(address, block.made, block.phase, false);
  auto made = std::make_shared<LiveBlock>(std::move(block));
  live_bytes_ += made->bytes;
  live_[address] = made;
  born_.push_back(std::move(made));
  if (live_bytes_ > peak_bytes_) {
    take_peak();
  } else if (born_.size() > 2 * live_.size() + 1024) {
    std::erase_if(born_, [](const auto& born) { return !born->live; });
  }
  return replaced;
}

std::shared_ptr<LiveBlock> LiveBlocks::remove(std::size_t address, c10::approx_time_t freed,
                                              std::uint32_t phase, bool in_backward) {
  const auto found = live_.find(address);
  if (found == live_.end() || found->second->made > freed) {
    return nullptr;
  }
  std::shared_ptr<LiveBlock> block = std::move(found->second);
  live_.erase(found);
  live_bytes_ -= block->bytes;
  block->live = false;
  block->freed_phase = phase;
  block->freed_in_backward = in_backward;
  if (block->place_in_peak >= 0) {
    gone_.push_back(block);
  }
  return block;
}

void LiveBlocks::declare(std::size_t address, BlockKind kind) {
  if (const auto found = live_.find(address); found != live_.end()) {
    found->second->declared = std::min(found->second->declared, kind);
  }
}

void LiveBlocks::take_peak() {
  peak_bytes_ = live_bytes_;
  for (const auto& block : gone_) {
    const auto place = static_cast<std::size_t>(std::exchange(block->place_in_peak, -1));
    peak_[place] = std::move(peak_.back());
    peak_.pop_back();
    if (place < peak_.size()) {
      peak_[place]->place_in_peak = static_cast<std::ptrdiff_t>(place);
    }
  }
  gone_.clear();
  for (auto& block : born_) {
    if (block->live) {
      block->place_in_peak = static_cast<std::ptrdiff_t>(peak_.size());
      peak_.push_back(std::move(block));
    }
  }
  born_.clear();
}

}  // namespace ferro
