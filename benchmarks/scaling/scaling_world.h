// One allocator over the null driver with a given number of blocks, streams and pools. All calls of
// scaling.cpp to the core go through this class.
#pragma once

#include "ferro/core/device/device_memory.h"
#include "ferro/graph/pool_router.h"
#include "null_driver.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace ferro {

// The reason why a figure could not be measured.
class Problem : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Shape {
  std::size_t blocks = 0;   // live ones on the main stream in the default pool
  std::size_t streams = 2;  // including the main one
  std::size_t pools = 1;    // besides the default pool, with one live block in each
};

class World {
 public:
  static constexpr std::size_t kPage = 2 * kMiB;

  // Throws Problem when the memory or the addresses do not suffice.
  World(DeviceId device, const Shape& shape)
      : shape_(shape),
        api_(NullDriver::table()),
        memory_(api_, device, addresses_, config(), nullptr),
        router_(memory_) {
    for (std::size_t i = 0; i < shape_.pools; ++i) {
      memory_.pools().hold(pool(i));
    }
    fill();
  }

  // Stream 0 is the main one. The handles are as far apart as those of a driver.
  static StreamId stream(std::size_t number) { return StreamId{0x10000 + number * 512}; }
  static PoolId pool(std::size_t number) { return {0, number + 1}; }
  // The id of an additional, temporary pool.
  static PoolId extra_pool(std::size_t number) { return {number + 1, 0}; }

  DevicePtr allocate(std::size_t bytes, StreamId on = stream(0),
                     const PoolId& pool = kDefaultPool) {
    const AllocateResult result = memory_.allocate(pool, on, {bytes, bytes});
    if (result.ptr == kNull) [[unlikely]] {
      throw Problem("out of memory or addresses with " +
                    std::to_string(memory_.report().held_bytes() / kMiB) + " MiB held");
    }
    return result.ptr;
  }
  void free(DevicePtr ptr) {
    Span* span = addresses_.find(ptr);
    if (span == nullptr || span->heap()->free(*span, ptr).error != FreeError::kNone) [[unlikely]] {
      throw Problem("a block was not live");
    }
  }
  void record_stream(DevicePtr ptr, StreamId stream) {
    Span& span = *addresses_.find(ptr);
    span.heap()->record_stream(span, ptr, stream);
  }

  DeviceMemory& memory() { return memory_; }
  PoolRouter& router() { return router_; }
  // The permanent live blocks of the main stream and the default pool.
  std::span<const DevicePtr> live_on_main() const {
    return std::span(live_).first(std::min(live_.size(), shape_.blocks));
  }

  // Makes so many pages of the arena of large blocks of the main stream idle pages of the store.
  void make_idle(std::size_t pages) {
    const DevicePtr large = allocate(pages * kPage);
    Heap& heap = *addresses_.find(large)->heap();
    free(large);
    const std::size_t released = heap.release_pages(pages, ReleaseAfter::kHostWait);
    memory_.stale().remove_passed();
    if (released < pages) {
      throw Problem("too few pages are free");
    }
  }
  std::size_t bytes_of_block_around(DevicePtr ptr) {
    Span& span = *addresses_.find(ptr);
    return span.heap()->live_block_around(span, ptr).value().size;
  }
  void share(DevicePtr ptr) {
    SharedRange range;
    Span& span = *addresses_.find(ptr);
    if (memory_.export_block(span, ptr, &range) != ExportResult::kOk) {
      throw Problem("a block was not exported");
    }
  }

  // Restores the initial state, after the caller has freed its blocks.
  void tidy() { memory_.empty_cache(); }

  // Frees all live blocks with `free_all(blocks)`, which gets them in random order, and allocates
  // others.
  template <typename Function>
  void exchange(Function free_all) {
    std::ranges::shuffle(live_, random_);
    free_all(std::span<const DevicePtr>(live_));
    live_.clear();
    tidy();
    fill();
  }

 private:
  // The number of small blocks for each block of two pages; all of the latter are freed.
  static constexpr std::size_t kSmallForEachLarge = 1'000;
  static constexpr std::size_t kBlocksOfStream = 8;

  static AllocatorConfig config() {
    AllocatorConfig config;
    // Handles of one page, so that a miss takes the same number at every size.
    config.handles.max_bytes = kPage;
    return config;
  }

  // From 512 B to 16 KiB, small ones as frequent as large ones.
  std::size_t draw_size() {
    const std::size_t power = kBlockAlignment << random_() % 5;
    return align_up(power + random_() % power, kBlockAlignment);
  }

  // Frees 30 % of the blocks of each stream in random order, and whole pages between them, which
  // are then released: so there are live blocks, free blocks and gaps.
  void fill() {
    fill_stream(stream(0), shape_.blocks, true);
    number_failures("stream", shape_.streams - 1,
                    [this](std::size_t i) { fill_stream(stream(i + 1), kBlocksOfStream, false); });
    number_failures("pool", shape_.pools, [this](std::size_t i) {
      live_.push_back(allocate(draw_size(), stream(0), pool(i)));
    });
    tidy();
  }

  // Adds the number of completed calls of `body` to an error.
  template <typename Body>
  static void number_failures(const std::string& what, std::size_t count, Body body) {
    for (std::size_t i = 0; i < count; ++i) {
      try {
        body(i);
      } catch (const Problem& problem) {
        throw Problem(what + " " + std::to_string(i + 1) + ": " + problem.what());
      }
    }
  }

  void fill_stream(StreamId on, std::size_t count, bool with_gaps) {
    std::vector<std::size_t> sizes(count * 10 / 7);
    std::size_t sum = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const bool large = with_gaps && i % kSmallForEachLarge == kSmallForEachLarge / 10;
      sizes[i] = large ? 2 * kPage : draw_size();
      sum += sizes[i];
    }
    // The memory is allocated at once, because a miss for each page may take long.
    free(allocate(sum, on));
    std::vector<DevicePtr> blocks;
    std::vector<DevicePtr> large;
    for (const std::size_t size : sizes) {
      (size == 2 * kPage ? large : blocks).push_back(allocate(size, on));
    }
    std::ranges::shuffle(blocks, random_);
    for (std::size_t i = count; i < blocks.size(); ++i) {
      free(blocks[i]);
    }
    blocks.resize(std::min(count, blocks.size()));
    std::ranges::for_each(large, [this](DevicePtr ptr) { free(ptr); });
    live_.insert(live_.end(), blocks.begin(), blocks.end());
  }

  const Shape shape_;
  std::mt19937_64 random_{1};
  const CudaApi api_;
  AddressIndex addresses_;
  DeviceMemory memory_;
  PoolRouter router_;
  std::vector<DevicePtr> live_;
};

}  // namespace ferro
