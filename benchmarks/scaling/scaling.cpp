// Host time of the core's operations in a small and a large world, over a driver that takes no
// time. Prints a JSON array with one object for each figure.
//
//   scaling blocks|streams|pools SMALL LARGE BLOCKS ROUNDS MILLISECONDS MEMORY_GIB ADDRESSES_TIB
//
// The two worlds differ in the number of live blocks, of streams or of private pools; if blocks do
// not differ, the main stream has BLOCKS. The worlds take turns, so that drift of the machine
// favours neither. MILLISECONDS is the time for measuring one figure in one turn; it may be
// exceeded by one operation.
#include "scaling_world.h"
#include "timing.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ferro {
namespace {

constexpr std::size_t kRepeating = 4 * kKiB;
// A size above that of small blocks.
constexpr std::size_t kLarge = 3 * kMiB;
constexpr std::size_t kPage = World::kPage;
constexpr std::size_t kSmallFrees = 20'000;
constexpr std::size_t kNewPools = 32;
constexpr std::size_t kWaitingFrees = 100;
// The machine may have interrupted so many of the frees of a turn.
constexpr std::size_t kInterruptions = 5;

using Figures = std::vector<double>;

struct Operation {
  std::vector<std::string_view> figures;
  bool result_grows = false;  // with the size of the world
  std::function<Figures(World&, const Effort&)> measure;
};

void pair(World& world, std::size_t bytes, StreamId on = World::stream(0)) {
  world.free(world.allocate(bytes, on));
}

Figures repeating_hit(World& world, const Effort& effort) {
  return {effort.of_loops([&] { pair(world, kRepeating); })};
}

Figures split_and_merge(World& world, const Effort& effort) {
  pair(world, 32 * kMiB);
  return {effort.of_loops([&] { pair(world, kLarge); })};
}

Figures two_streams(World& world, const Effort& effort) {
  const double both = effort.of_loops([&] {
    pair(world, kRepeating);
    pair(world, kRepeating, World::stream(1));
  });
  return {both / 2};
}

// Frees `blocks` one after the other; returns their times, the longest first.
template <typename AnyClock>
std::vector<double> time_frees(World& world, std::span<const DevicePtr> blocks) {
  std::vector<double> times(blocks.size());
  auto last = AnyClock::now();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    world.free(blocks[i]);
    const auto now = AnyClock::now();
    times[i] = without_clock<AnyClock>(nanoseconds(now - last));
    last = now;
  }
  std::ranges::sort(times, std::ranges::greater());
  return times;
}

double mean(std::span<const double> times) {
  return std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
}

Figures random_frees(World& world, const Effort&) {
  Figures figures;
  world.exchange([&](std::span<const DevicePtr> blocks) {
    const std::vector<double> times = time_frees<Clock>(world, blocks);
    figures = {mean(times), times.front(), times[kInterruptions]};
  });
  world.exchange([&](std::span<const DevicePtr> blocks) {
    figures.push_back(time_frees<ThreadClock>(world, blocks).front());
  });
  return figures;
}

Figures small_frees(World& world, const Effort&) {
  std::vector<DevicePtr> blocks(kSmallFrees);
  const auto allocate = [&] { return world.allocate(kBlockAlignment); };
  std::ranges::generate(blocks, allocate);
  const double usual = mean(time_frees<Clock>(world, blocks));
  world.tidy();
  std::ranges::generate(blocks, allocate);
  // A merge of all blocks happens in a single free, so the slowest one counts.
  const double slowest = time_frees<ThreadClock>(world, blocks).front();
  world.tidy();
  return {usual, slowest};
}

// Allocates memory for which `step` must make room.
DevicePtr miss(World& world, std::size_t bytes, LadderStep step, double* time) {
  const LadderCounts before = world.memory().report().counters().ladder;
  DevicePtr ptr = kNull;
  *time = time_of([&] { ptr = world.allocate(bytes); });
  const LadderCounts after = world.memory().report().counters().ladder;
  const auto [changed, ignored] = std::ranges::mismatch(after, before);
  const auto by = static_cast<LadderStep>(changed - after.begin());
  if (by != step) {
    const std::string found = changed == after.end() ? "hit" : name_of(by);
    throw Problem(std::string("expected ") + name_of(step) + ", found " + found);
  }
  return ptr;
}

// Two holes of eight pages each, four pages apart, make room for a request larger than one of them.
// Its size is another in each round: memory grows for a size that has moved pages several times.
Figures miss_that_moves(World& world, const Effort& effort) {
  static std::size_t rounds = 0;
  const double time = effort.of_single([&] {
    pair(world, 20 * kPage);
    const DevicePtr first = world.allocate(8 * kPage);
    const DevicePtr between = world.allocate(4 * kPage);
    const DevicePtr second = world.allocate(8 * kPage);
    world.free(first);
    world.free(second);
    double time = 0;
    const std::size_t bytes = 12 * kPage - ++rounds % (kPage / kBlockAlignment) * kBlockAlignment;
    const DevicePtr moved = miss(world, bytes, LadderStep::kMovePages, &time);
    world.free(moved);
    world.free(between);
    world.tidy();
    return time;
  });
  return {time};
}

Figures miss_that_takes_idle(World& world, const Effort& effort) {
  pair(world, 6 * kPage);
  const double time = effort.of_single([&] {
    world.make_idle(4);
    double time = 0;
    world.free(miss(world, 4 * kPage, LadderStep::kIdlePages, &time));
    return time;
  });
  world.tidy();
  return {time};
}

Figures miss_that_grows(World& world, const Effort& effort) {
  std::vector<DevicePtr> blocks;
  const double time = effort.of_single([&] {
    double time = 0;
    blocks.push_back(miss(world, 4 * kPage, LadderStep::kGrow, &time));
    return time;
  });
  std::ranges::for_each(blocks, [&](DevicePtr ptr) { world.free(ptr); });
  world.tidy();
  return {time};
}

DevicePtr allocate_used(World& world) {
  const DevicePtr ptr = world.allocate(kRepeating);
  world.record_stream(ptr, World::stream(1));
  return ptr;
}

Figures used_elsewhere(World& world, const Effort& effort) {
  return {effort.of_loops([&] {
    world.free(allocate_used(world));
    world.memory().collect_pending();
  })};
}

Figures collect_nothing(World& world, const Effort& effort) {
  NullDriver::set_events_complete(false);
  for (std::size_t i = 0; i < kWaitingFrees; ++i) {
    world.free(allocate_used(world));
  }
  const double time = effort.of_loops([&] { world.memory().collect_pending(); });
  NullDriver::set_events_complete(true);
  world.memory().collect_pending();
  return {time};
}

Figures pool_events(World& world, const Effort&) {
  DeviceMemory& memory = world.memory();
  std::vector<DevicePtr> blocks(kNewPools);
  const auto each = [&](auto body) {
    return time_of([&] {
             for (std::size_t i = 0; i < kNewPools; ++i) {
               body(World::extra_pool(i), blocks[i]);
             }
           }) /
           static_cast<double>(kNewPools);
  };
  const double held = each([&](const PoolId& pool, DevicePtr&) { memory.pools().hold(pool); });
  const double first = each([&](const PoolId& pool, DevicePtr& block) {
    block = world.allocate(kRepeating, World::stream(0), pool);
  });
  std::ranges::for_each(blocks, [&](DevicePtr ptr) { world.free(ptr); });
  const double gone = each([&](const PoolId& pool, DevicePtr&) {
    memory.pools().release(pool);
    memory.empty_pool(pool);
  });
  return {held, first, gone};
}

Figures diversion(World& world, const Effort& effort) {
  const PoolId pool = World::extra_pool(0);
  const PoolRouter::Filter nothing = [](StreamId) { return false; };
  const double time = effort.of_loops([&] {
    world.router().begin(pool, nothing, World::stream(0));
    world.router().end(pool);
    world.memory().pools().release(pool);
  });
  world.memory().empty_pool(pool);
  return {time};
}

Figures share(World& world, const Effort& effort) {
  const double time = effort.of_single([&] {
    std::array<DevicePtr, 8> blocks{};
    std::ranges::generate(blocks, [&] { return world.allocate(kPage); });
    // The first call would find its data outside the caches.
    world.share(blocks[0]);
    const double time = time_of([&] {
      std::for_each(blocks.begin() + 1, blocks.end(), [&](DevicePtr ptr) { world.share(ptr); });
    });
    std::ranges::for_each(blocks, [&](DevicePtr ptr) { world.free(ptr); });
    world.tidy();
    return time / static_cast<double>(blocks.size() - 1);
  });
  return {time};
}

Figures block_around(World& world, const Effort& effort) {
  const DevicePtr inside = world.live_on_main()[world.live_on_main().size() / 2] + 1;
  volatile std::size_t sink = 0;
  return {effort.of_loops([&] { sink = world.bytes_of_block_around(inside); })};
}

// A query whose result is `look(memory)`, a number.
template <typename Look>
Operation statistic(std::string_view name, Look look, bool result_grows = false) {
  return {{name}, result_grows, [look](World& world, const Effort& effort) -> Figures {
            volatile std::size_t sink = 0;
            const double time =
                effort.of_loops([&] { sink = static_cast<std::size_t>(look(world.memory())); });
            return {time};
          }};
}

std::vector<Operation> operations() {
  return {
      {{"hit, a size that repeats"}, false, repeating_hit},
      {{"hit, split and merged back"}, false, split_and_merge},
      {{"hit, two streams in turns"}, false, two_streams},
      {{"free in random order", "free: the slowest", "free: the slowest but five",
        "free: the slowest, in the thread's own time"},
       false,
       random_frees},
      {{"free of 512 B, 20,000 in a row", "free of 512 B: the slowest, in the thread's own time"},
       false,
       small_frees},
      {{"miss that moves pages"}, false, miss_that_moves},
      {{"miss that takes idle pages"}, false, miss_that_takes_idle},
      {{"miss that grows"}, false, miss_that_grows},
      {{"allocate, record_stream, free, collect"}, false, used_elsewhere},
      {{"collect while 100 frees wait"}, false, collect_nothing},
      statistic("DeviceStats::read",
                [](DeviceMemory& memory) { return memory.stats().read()[kBytes][kAll].current; }),
      statistic("reserved",
                [](DeviceMemory& memory) { return memory.report().reserved()[kAll].current; }),
      statistic("view", [](DeviceMemory& memory) { return memory.report().view().free_blocks; }),
      statistic("largest_free_block",
                [](DeviceMemory& memory) { return memory.report().largest_free_block(); }),
      statistic("counters",
                [](DeviceMemory& memory) { return memory.report().counters().retries; }),
      statistic(
          "bytes_from_driver",
          [](DeviceMemory& memory) {
            return memory.report().bytes_from_driver(World::stream(0), {4 * kPage, 4 * kPage});
          }),
      statistic(
          "reserved_by_pool",
          [](DeviceMemory& memory) { return memory.report().reserved_by_pool().size(); }, true),
      {{"hold_pool", "first allocation in a pool", "release_pool, empty_pool"}, false, pool_events},
      {{"diversion: begin, end, release_pool"}, false, diversion},
      {{"export_block"}, false, share},
      {{"live_block_around"}, true, block_around},
      statistic(
          "segments", [](DeviceMemory& memory) { return memory.report().segments(nullptr).size(); },
          true),
  };
}

// One of the two worlds, and its measurements.
struct Side {
  std::size_t size = 0;
  std::unique_ptr<World> world;
  std::string problem;  // the reason if the world does not exist
};

struct Measured {
  std::vector<std::vector<double>> rounds;  // of each figure
  std::string problem;
};

Side make_side(DeviceId device, std::string_view dimension, std::size_t size,
               std::size_t common_blocks) {
  Shape shape{.blocks = common_blocks};
  (dimension == "blocks"    ? shape.blocks
   : dimension == "streams" ? shape.streams
                            : shape.pools) = size;
  Side side{size, nullptr, {}};
  try {
    side.world = std::make_unique<World>(device, shape);
  } catch (const Problem& problem) {
    side.problem = problem.what();
  }
  return side;
}

void measure(const Operation& operation, Side& side, const Effort& effort, Measured& measured) {
  if (side.world == nullptr || !measured.problem.empty()) {
    measured.problem = measured.problem.empty() ? side.problem : measured.problem;
    return;
  }
  try {
    const Figures figures = operation.measure(*side.world, effort);
    for (std::size_t i = 0; i < figures.size(); ++i) {
      measured.rounds[i].push_back(figures[i]);
    }
  } catch (const Problem& problem) {
    measured.problem = problem.what();
  }
}

void print_list(std::span<const double> values) {
  std::cout << '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::cout << (i == 0 ? "" : ", ") << values[i];
  }
  std::cout << ']';
}

struct Options {
  std::string_view dimension;
  std::array<std::size_t, 2> sizes{};
  std::size_t blocks = 0, rounds = 0, milliseconds = 0, memory_gib = 0, addresses_tib = 0;
};

// None if the arguments are invalid.
std::optional<Options> read_options(std::span<char*> arguments) {
  Options options;
  const std::array<std::size_t*, 7> numbers{
      &options.sizes[0],     &options.sizes[1],   &options.blocks,       &options.rounds,
      &options.milliseconds, &options.memory_gib, &options.addresses_tib};
  if (arguments.size() != numbers.size() + 2) {
    return std::nullopt;
  }
  options.dimension = arguments[1];
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const char* text = arguments[i + 2];
    std::from_chars(text, text + std::strlen(text), *numbers[i]);
    if (*numbers[i] == 0) {
      return std::nullopt;
    }
  }
  const bool known = options.dimension == "blocks" || options.dimension == "streams" ||
                     options.dimension == "pools";
  return known ? std::optional(options) : std::nullopt;
}

int run(const Options& options) {
  const Effort effort(static_cast<double>(options.milliseconds));
  NullDriver::start(options.memory_gib * kGiB, options.addresses_tib << 40);
  // Never destroyed, because their blocks are live.
  auto& sides = *new std::vector<Side>;
  for (const std::size_t size : options.sizes) {
    sides.push_back(
        make_side(static_cast<DeviceId>(sides.size()), options.dimension, size, options.blocks));
  }
  std::cout << "[";
  bool first = true;
  for (const Operation& operation : operations()) {
    std::vector<Measured> measured(2, {{operation.figures.size(), std::vector<double>{}}, {}});
    for (std::size_t round = 0; round < options.rounds; ++round) {
      for (std::size_t i = 0; i < 2; ++i) {
        measure(operation, sides[i], effort, measured[i]);
      }
    }
    for (std::size_t figure = 0; figure < operation.figures.size(); ++figure) {
      std::cout << (first ? "\n" : ",\n") << "{\"operation\": \"" << operation.figures[figure]
                << "\", \"result_grows\": " << (operation.result_grows ? "true" : "false")
                << ", \"sizes\": [" << sides[0].size << ", " << sides[1].size
                << "], \"nanoseconds\": [";
      print_list(measured[0].rounds[figure]);
      std::cout << ", ";
      print_list(measured[1].rounds[figure]);
      std::cout << "], \"problems\": [\"" << measured[0].problem << "\", \"" << measured[1].problem
                << "\"]}" << std::flush;
      first = false;
    }
  }
  std::cout << "\n]\n";
  for (const Side& side : sides) {
    if (side.world != nullptr) {
      side.world->memory().report().check_invariants();
    }
  }
  return 0;
}

}  // namespace
}  // namespace ferro

int main(int argc, char** argv) {
  const std::optional<ferro::Options> options =
      ferro::read_options(std::span(argv, static_cast<std::size_t>(argc)));
  if (!options) {
    std::cerr << "usage: scaling blocks|streams|pools SMALL LARGE BLOCKS ROUNDS MILLISECONDS "
                 "MEMORY_GIB ADDRESSES_TIB\n";
    return 2;
  }
  try {
    return ferro::run(*options);
  } catch (const std::exception& error) {
    std::cerr << "scaling: " << error.what() << '\n';
    return 1;
  }
}
