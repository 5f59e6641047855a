#include "ferro/adapter/graphs/graph_uses.h"

#include "ferro/adapter/allocator/installed_allocator.h"
#include "ferro/adapter/graphs/torch_graph.h"
#include "ferro/adapter/torch/driver_refusals.h"
#include "ferro/adapter/torch/workspaces.h"
#include "ferro/base/bytes.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <memory>
#include <set>

namespace ferro {
namespace {

// Clears the stack below the caller, on which operators and launches have their variables.
[[gnu::noinline]] void scrub_stack() {
  std::array<std::byte, 32 * kKiB> below;
  std::memset(below.data(), 0, below.size());
  asm volatile("" : : "r"(below.data()) : "memory");  // the compiler must not drop the stores
}

}  // namespace

GraphUses::GraphUses(c10::DeviceIndex device, StreamId stream, std::size_t mark)
    : device_(device),
      capture_(with_torch_errors([&] { return driver_of(device).capture_info(stream).id; })),
      mark_(mark),
      words_(with_torch_errors([&] { return driver_of(device).captured_words(stream); })) {}

void GraphUses::settle(const PoolId& pool) {
  CudaAllocator& allocator = *installed_allocator();
  WatchedBlocks& watched = allocator.watched_blocks();
  pool_ = pool;
  addresses_ =
      allocator.addresses_of_capture(device_, pool, capture_, GraphMemory::Places::kOriginal);
  std::set<DevicePtr> words(words_.begin(), words_.end());
  words_ = {};
  // Removes the words in a range. False if there were none.
  const auto take = [&](DevicePtr ptr, std::size_t bytes) {
    const auto first = words.lower_bound(ptr);
    const auto end = words.lower_bound(ptr + bytes);
    const bool any = first != end;
    words.erase(first, end);
    return any;
  };
  std::vector<WatchedBlocks::Handle> used;
  allocator.visit_live([&](const BlockView& block, const PoolId& of) {
    if (take(block.ptr, block.size)) {
      used.push_back(watched.watch(block, of));
    }
  });
  // Of several blocks at one address the last one counts.
  const std::vector<WatchedBlocks::Handle> freed = watched.freed_in_captures_since(mark_);
  for (auto block = freed.rbegin(); block != freed.rend(); ++block) {
    if (take((*block)->ptr(), (*block)->size())) {
      used.push_back(*block);
    }
  }
  if (!allocator.has_captures()) {
    watched.forget_freed();
  }
  const std::set<DevicePtr> workspaces = addresses_of_workspaces();
  for (const WatchedBlocks::Handle& block : used) {
    std::vector<Use>& uses = block->pool() != pool                        ? outside_
                             : is_of_capture(block->ptr(), block->size()) ? own_
                                                                          : within_;
    uses.push_back({block, workspaces.contains(block->ptr())});
  }
}

std::vector<GraphUses::Use> GraphUses::in_scratch_of(const GraphUses& other) const {
  const AddressRanges scratch = installed_allocator()->addresses_of_capture(
      other.device_, other.pool_, other.capture_, GraphMemory::Places::kCurrent);
  std::vector<Use> found;
  std::ranges::copy_if(own_, std::back_inserter(found), [&](const Use& use) {
    return !use.block->is_freed() && scratch.overlaps(use.block->ptr(), use.block->size());
  });
  return found;
}

ScrubbedStacks::ScrubbedStacks()
    : callback_(at::addGlobalCallback(at::RecordFunctionCallback(
          [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
            if (installed_allocator()->has_captures()) {
              scrub_stack();
            }
            return nullptr;
          }))) {}

ScrubbedStacks::~ScrubbedStacks() { at::removeCallback(callback_); }

}  // namespace ferro
