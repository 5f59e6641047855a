// The loops of hit_path.py: allocations served from memory that the allocator holds, without Python
// in between. They work with any CUDA allocator of torch.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Allocator = c10::cuda::CUDACachingAllocator::CUDAAllocator;

constexpr int kPairsBetweenChecks = 64;

double nanoseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

void pairs(Allocator& allocator, std::size_t bytes, int count) {
  for (int i = 0; i < count; ++i) {
    allocator.raw_delete(allocator.raw_alloc(bytes));
  }
}

// Sizes from 512 B to 1 MiB, small ones as frequent as large ones.
std::size_t draw_size(std::mt19937_64& rng) {
  const std::size_t power = std::size_t{512} << (rng() % 11);
  return power + rng() % power;
}

}  // namespace

// Nanoseconds of one allocation and its release in each of `threads` threads that run at once for
// `seconds`, all on one stream or each on its own.
extern "C" double ferro_benchmark_pairs(std::size_t bytes, int threads, int own_streams,
                                        double seconds) {
  Allocator& allocator = *c10::cuda::CUDACachingAllocator::get();
  const c10::cuda::CUDAStream shared = c10::cuda::getStreamFromPool();
  std::vector<double> results(static_cast<std::size_t>(threads));
  std::vector<std::thread> workers;
  std::atomic<bool> stop{false};
  std::barrier start(threads + 1);
  for (int thread = 0; thread < threads; ++thread) {
    workers.emplace_back([&, thread] {
      // Until a thread has set a device, every query of it costs a microsecond. `force` is needed
      // because device 0 counts as set.
      c10::cuda::SetDevice(0, /*force=*/true);
      c10::cuda::setCurrentCUDAStream(own_streams != 0 ? c10::cuda::getStreamFromPool() : shared);
      pairs(allocator, bytes, kPairsBetweenChecks);
      start.arrive_and_wait();
      const Clock::time_point begin = Clock::now();
      std::int64_t done = 0;
      while (!stop.load(std::memory_order_relaxed)) {
        pairs(allocator, bytes, kPairsBetweenChecks);
        done += kPairsBetweenChecks;
      }
      results[static_cast<std::size_t>(thread)] =
          nanoseconds_since(begin) / static_cast<double>(done > 0 ? done : 1);
    });
  }
  start.arrive_and_wait();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop.store(true, std::memory_order_relaxed);
  double sum = 0;
  for (int thread = 0; thread < threads; ++thread) {
    workers[static_cast<std::size_t>(thread)].join();
    sum += results[static_cast<std::size_t>(thread)];
  }
  return sum / threads;
}

// Nanoseconds of one release and one allocation while `live` blocks of mixed sizes stay live.
extern "C" double ferro_benchmark_churn(int live, double seconds, std::uint64_t seed) {
  Allocator& allocator = *c10::cuda::CUDACachingAllocator::get();
  std::mt19937_64 rng(seed);
  std::vector<void*> blocks(static_cast<std::size_t>(live));
  for (void*& block : blocks) {
    block = allocator.raw_alloc(draw_size(rng));
  }
  // The random numbers are drawn outside the timed part: they cost as much as an allocation.
  struct Operation {
    std::size_t victim;
    std::size_t bytes;
  };
  std::vector<Operation> operations(8192);
  for (Operation& operation : operations) {
    operation = {rng() % blocks.size(), draw_size(rng)};
  }
  const auto turn = [&] {
    for (const Operation& operation : operations) {
      void*& block = blocks[operation.victim];
      allocator.raw_delete(block);
      block = allocator.raw_alloc(operation.bytes);
    }
  };
  turn();
  const Clock::time_point begin = Clock::now();
  double spent = 0;
  std::size_t done = 0;
  while (spent < seconds * 1e9) {
    turn();
    done += operations.size();
    spent = nanoseconds_since(begin);
  }
  for (void* block : blocks) {
    allocator.raw_delete(block);
  }
  return spent / static_cast<double>(done);
}
