// Every driver call of a scenario fails once, with each of two errors. After each failure the
// promises must hold, and the same call must succeed without the fault.
#include "ferro/driver/error.h"
#include "ferro/graph/checkpoint.h"
#include "support/faulty_api.h"
#include "support/heap_fixture.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace ferro {
namespace fault_test {

using testing::bytes;
using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

constexpr PoolId kPool{0, 7};
constexpr PoolId kOtherPool{0, 8};
constexpr std::uint64_t kGroup = 1;

// Heaps are visited in the order of their streams' handles, which are addresses. The order must be
// the same in all runs of a scenario, so that each makes the same calls.
std::array<StreamId, 3> ascending_streams() {
  std::array<StreamId, 3> streams;
  std::ranges::generate(streams, SimGpu::make_stream);
  std::ranges::sort(streams);
  return streams;
}

// A fresh device for each run of a scenario.
struct World {
  World(std::size_t pages, const HandleRules& handles)
      : gpu(pages, std::string(SimGpu::kManual) + ",devices=2") {
    FaultyApi::reset();
    device = std::make_unique<DeviceMemory>(FaultyApi::table(), 0, addresses,
                                            AllocatorConfig{.handles = handles}, nullptr);
    graphs = std::make_unique<GraphMemory>(*device);
  }

  DevicePtr allocate(std::size_t size, StreamId on, const PoolId& pool = kDefaultPool) {
    return pool == kDefaultPool ? device->allocate(pool, on, bytes(size)).ptr
                                : graphs->allocate(pool, on, bytes(size)).ptr;
  }
  Span& span_of(DevicePtr ptr) { return *addresses.find(ptr); }
  void free(DevicePtr ptr) {
    FERRO_CHECK(span_of(ptr).heap()->free(span_of(ptr), ptr).error == FreeError::kNone);
  }
  void record(DevicePtr ptr, StreamId on) {
    FERRO_CHECK(span_of(ptr).heap()->record_stream(span_of(ptr), ptr, on));
    SimGpu::fill(on, ptr, 1, 1);
  }

  // The program's blocks, and the sums over them.
  std::string program_state() {
    std::string text;
    for (const SegmentView& segment : device->report().segments(nullptr)) {
      for (const BlockView& block : segment.blocks) {
        if (block.state == BlockState::kLive) {
          text += std::to_string(address_of(block.ptr)) + ":" + std::to_string(block.size) + " ";
        }
      }
    }
    const StatTable table = device->stats().read();
    return text + std::to_string(table[kBlocks][kAll].current) + " blocks, " +
           std::to_string(table[kBytes][kAll].current) + " bytes";
  }
  // All blocks with their addresses, without the pages in the store.
  std::string line_state() {
    std::string text;
    for (const SegmentView& segment : device->report().segments(nullptr)) {
      text += std::to_string(address_of(segment.ptr)) + "(" + testing::layout({segment}) + ") ";
    }
    return text;
  }

  SimGpu gpu;
  const std::array<StreamId, 3> streams = ascending_streams();
  const StreamId stream = streams[0];
  const StreamId side = streams[1];
  const StreamId third = streams[2];
  AddressIndex addresses;
  std::unique_ptr<DeviceMemory> device;
  std::unique_ptr<GraphMemory> graphs;
  bool share(DevicePtr ptr) {
    return device->export_block(span_of(ptr), ptr, &shared) == ExportResult::kOk;
  }
  std::vector<DevicePtr> blocks;
  PoolCheckpoint checkpoint;
  SharedRange shared;
};

SleepFilter everything() {
  return {[](const SleepFilter::InUse&) { return true; }, [](const PoolId&) { return true; }};
}

SleepOutcome fall_asleep(World& w) {
  return w.device->sleep(everything(), Sleeper::Contents::kKeep, Sleeper::Want::kWhatCanSleep);
}

// Captures into a pool: one live page and three pages of scratch. False if out of memory, with
// nothing left.
bool capture(World& w, const PoolId& pool) {
  using Outcome = GraphMemory::Outcome;
  std::vector<DevicePtr> blocks;
  const auto fail = [&] {
    for (const DevicePtr block : blocks) {
      w.free(block);
    }
    static_cast<void>(w.graphs->end_capture(pool, Outcome::kFailed));
    return false;
  };
  try {
    if (w.graphs->begin_capture(pool) != SharingResult::kOk) {
      return false;
    }
    for (const std::size_t pages : {1, 1, 2}) {
      const DevicePtr block = w.allocate(pages * kPageBytes, w.stream, pool);
      if (block == kNull) {
        return fail();
      }
      blocks.push_back(block);
    }
    w.free(blocks[0]);
    w.free(blocks[2]);
    blocks = {blocks[1]};
    return w.graphs->end_capture(pool, Outcome::kSucceeded) == SharingResult::kOk || fail();
  } catch (const DriverError&) {
    fail();
    throw;
  }
}

bool join(World& w) {
  return w.graphs->join(kGroup, kPool) == SharingResult::kOk &&
         w.graphs->join(kGroup, kOtherPool) == SharingResult::kOk;
}

std::size_t shared_pages(World& w) { return w.graphs->bytes_of(kGroup).set / kPageBytes; }

enum class Promise {
  kNothingChanged,   // a failure leaves the arena as it was
  kProgramUnharmed,  // a failure may have moved pages that carry no live byte
  kNeverFails,       // completes even if driver calls fail
};

struct Scenario {
  std::string name;
  std::size_t pages;
  Promise promise;
  std::function<void(World&)> prepare;
  // A result of false and a DriverError mean failure.
  std::function<bool(World&)> act;
};

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

enum class Outcome { kCompleted, kFailed, kThrew };

Outcome run(const Scenario& scenario, World& world) {
  try {
    return scenario.act(world) ? Outcome::kCompleted : Outcome::kFailed;
  } catch (const DriverError&) {
    return Outcome::kThrew;
  }
}

std::size_t reservations() {
  std::string text(1 << 16, '\0');
  text.resize(ferro_sim_report(0, text.data(), text.size()));
  const std::string key = "\"reservations\": ";
  const std::size_t at = text.find(key);
  FERRO_CHECK(at != std::string::npos, text);
  return std::stoul(text.substr(at + key.size()));
}

// Frees and empties everything; no memory may stay on the device. `failed` is the call that failed
// before.
void expect_no_leak(World& world, const std::string& failed) {
  FaultyApi::reset();
  SimGpu::abandon_capture(world.stream);
  for (const SegmentView& segment : world.device->report().segments(nullptr)) {
    for (const BlockView& block : segment.blocks) {
      if (block.state == BlockState::kLive) {
        world.free(block.ptr);
      }
    }
  }
  world.device->empty_cache();
  world.graphs.reset();
  world.device.reset();
  EXPECT_EQ(SimGpu::used_pages(), 0U);
  // Addresses that the driver refuses to release are lost, which is harmless.
  EXPECT_EQ(reservations(), failed == "cuMemAddressFree" ? 1U : 0U);
}

class FaultTest : public ::testing::TestWithParam<Scenario> {
 protected:
  void fail_call(std::uint64_t call, CUresult error, const HandleRules& handles) {
    const Scenario& scenario = GetParam();
    World world(scenario.pages, handles);
    scenario.prepare(world);
    const std::string program_before = world.program_state();
    const std::string line_before = world.line_state();

    FaultyApi::fail_at(call, error);
    const Outcome outcome = run(scenario, world);
    const std::string failed = FaultyApi::failed();
    SCOPED_TRACE("call " + std::to_string(call) + " (" + failed + ") fails with " +
                 std::to_string(static_cast<int>(error)));
    ASSERT_FALSE(failed.empty());
    FaultyApi::fail_at(0, CUDA_SUCCESS);
    world.device->report().check_invariants();
    EXPECT_EQ(SimGpu::used_pages(), world.device->store().counts().held);
    if (outcome != Outcome::kCompleted) {
      EXPECT_NE(scenario.promise, Promise::kNeverFails);
      EXPECT_EQ(world.program_state(), program_before);
      if (scenario.promise == Promise::kNothingChanged) {
        EXPECT_EQ(world.line_state(), line_before);
      }
      EXPECT_EQ(run(scenario, world), Outcome::kCompleted) << "without the fault";
      world.device->report().check_invariants();
    }
    expect_no_leak(world, failed);
  }
  void fail_every_call(const HandleRules& handles);
};

void FaultTest::fail_every_call(const HandleRules& handles) {
  const Scenario& scenario = GetParam();
  std::uint64_t calls = 0;
  {
    World world(scenario.pages, handles);
    scenario.prepare(world);
    FaultyApi::reset();
    ASSERT_EQ(run(scenario, world), Outcome::kCompleted);
    calls = FaultyApi::calls();
    world.device->report().check_invariants();
    expect_no_leak(world, "");
  }
  ASSERT_GT(calls, 0U);
  for (std::uint64_t call = 1; call <= calls; ++call) {
    for (const CUresult error : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN}) {
      fail_call(call, error, handles);
    }
  }
}

TEST_P(FaultTest, EveryCallMayFail) { fail_every_call({}); }

TEST_P(FaultTest, EveryCallMayFailWithLargeHandles) { fail_every_call(testing::kCoarseHandles); }

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> all = {
      {"FirstGrowth", 16, Promise::kNothingChanged, [](World&) {},
       [](World& w) { return w.allocate(512, w.stream) != kNull; }},
      {"GrowthOfManyPages", 16, Promise::kNothingChanged,
       [](World& w) { w.allocate(kPageBytes + 512, w.stream); },
       [](World& w) { return w.allocate(7 * kPageBytes, w.stream) != kNull; }},
      {"GrowthIntoAHole", 16, Promise::kNothingChanged,
       [](World& w) {
         const DevicePtr a = w.allocate(3 * kPageBytes, w.stream);
         w.allocate(kPageBytes, w.stream);
         w.free(a);
         w.device->empty_cache();
       },
       [](World& w) { return w.allocate(3 * kPageBytes, w.stream) != kNull; }},
      {"GrowthWithANewSpan", 600, Promise::kNothingChanged,
       [](World& w) { w.allocate(510 * kPageBytes, w.stream); },
       [](World& w) { return w.allocate(4 * kPageBytes, w.stream) != kNull; }},
      {"GrowthFromIdlePages", 16, Promise::kNothingChanged,
       [](World& w) {
         testing::Handles idle;
         FERRO_CHECK(testing::take(w.device->store(), 3, Fit::kAtLeast, idle) == TakeResult::kOk);
         w.device->store().put(idle);
       },
       [](World& w) { return w.allocate(3 * kPageBytes, w.stream) != kNull; }},
      {"MovedPages", 16, Promise::kNothingChanged,
       [](World& w) {
         for (int i = 0; i < 12; ++i) {
           w.blocks.push_back(w.allocate(kPageBytes, w.stream));
         }
         for (std::size_t i = 0; i < w.blocks.size(); i += 2) {
           w.free(w.blocks[i]);
         }
       },
       [](World& w) { return w.allocate(5 * kPageBytes, w.stream) != kNull; }},
      {"OldMappingsOfMovedPages", 16, Promise::kProgramUnharmed,
       [](World& w) {
         for (int i = 0; i < 12; ++i) {
           w.blocks.push_back(w.allocate(kPageBytes, w.stream));
         }
         for (std::size_t i = 0; i < w.blocks.size(); i += 2) {
           w.free(w.blocks[i]);
         }
         w.free(w.allocate(5 * kPageBytes, w.stream));
       },
       [](World& w) {
         w.device->empty_cache();
         return w.device->store().counts().held == 6;
       }},
      {"GrowthInACapture", 16, Promise::kNothingChanged,
       [](World& w) {
         w.device->pools().hold(kPool);
         SimGpu::begin_capture(w.stream, CU_STREAM_CAPTURE_MODE_RELAXED);
       },
       [](World& w) { return w.allocate(2 * kPageBytes, w.stream, kPool) != kNull; }},
      {"Reclaim", 16, Promise::kProgramUnharmed,
       [](World& w) {
         const DevicePtr a = w.allocate(3 * kPageBytes, w.stream);
         w.blocks.push_back(w.allocate(kPageBytes, w.stream));
         w.free(w.allocate(2 * kPageBytes, w.stream));
         w.free(a);
       },
       [](World& w) {
         Heap& heap = *w.span_of(w.blocks[0]).heap();
         heap.release_pages(~std::size_t{0}, ReleaseAfter::kHostWait);
         return heap.free_pages() == 0;
       }},
      {"EmptyCache", 16, Promise::kProgramUnharmed,
       [](World& w) {
         w.allocate(512, w.stream);
         w.free(w.allocate(3 * kPageBytes, w.stream));
         const DevicePtr a = w.allocate(2 * kPageBytes, w.side);
         w.record(a, w.stream);
         w.free(a);
         w.device->pools().hold(kPool);
         w.free(w.allocate(2 * kPageBytes, w.stream, kPool));
         FERRO_CHECK(w.device->pools().release(kPool));
       },
       [](World& w) {
         w.device->empty_cache();
         return w.device->store().counts().held == 1;
       }},
      {"Sleep", 32, Promise::kProgramUnharmed,
       [](World& w) {
         w.blocks.push_back(w.allocate(512, w.stream));
         w.blocks.push_back(w.allocate(3 * kPageBytes, w.side));
         w.free(w.allocate(2 * kPageBytes, w.stream));
         w.blocks.push_back(w.allocate(5 * kPageBytes, w.stream));
       },
       [](World& w) { return fall_asleep(w).result == SleepResult::kOk; }},
      {"Wake", 32, Promise::kProgramUnharmed,
       [](World& w) {
         w.blocks.push_back(w.allocate(512, w.stream));
         w.blocks.push_back(w.allocate(3 * kPageBytes, w.side));
         w.blocks.push_back(w.allocate(5 * kPageBytes, w.stream));
         FERRO_CHECK(fall_asleep(w).result == SleepResult::kOk);
         w.free(w.blocks[1]);
       },
       [](World& w) {
         return w.device->wake(everything()).result == SleepResult::kOk &&
                w.device->sleep_view().asleep_bytes == 0 && w.device->sleep_view().saved_bytes == 0;
       }},
      {"RecordStream", 16, Promise::kNothingChanged,
       [](World& w) { w.blocks.push_back(w.allocate(512, w.stream)); },
       [](World& w) {
         w.record(w.blocks[0], w.side);
         return true;
       }},
      {"FreeOfABlockThatTwoStreamsUse", 16, Promise::kNeverFails,
       [](World& w) {
         w.blocks.push_back(w.allocate(kPageBytes, w.stream));
         w.record(w.blocks[0], w.side);
         w.record(w.blocks[0], w.third);
       },
       [](World& w) {
         w.free(w.blocks[0]);
         return true;
       }},
      {"CollectPending", 16, Promise::kProgramUnharmed,
       [](World& w) {
         for (const StreamId user : {w.side, w.third}) {
           const DevicePtr a = w.allocate(kPageBytes, w.stream);
           w.record(a, user);
           w.blocks.push_back(a);
         }
         for (const DevicePtr block : w.blocks) {
           w.free(block);
         }
         SimGpu::finish_all();
       },
       [](World& w) {
         w.device->collect_pending();
         return w.device->stats().read()[kActiveBlocks][kAll].current == 0;
       }},
      {"WaitForPendingBlocks", 8, Promise::kProgramUnharmed,
       [](World& w) {
         const DevicePtr a = w.allocate(8 * kPageBytes, w.stream);
         w.record(a, w.side);
         w.free(a);
       },
       [](World& w) { return w.allocate(5 * kPageBytes, w.stream) != kNull; }},
      {"WaitingRatherThanGrowing", 16, Promise::kProgramUnharmed,
       [](World& w) {
         for (const StreamId user : {w.side, w.third}) {
           const DevicePtr a = w.allocate(4 * kPageBytes, w.stream);
           w.record(a, user);
           w.blocks.push_back(a);
         }
         for (const DevicePtr block : w.blocks) {
           w.free(block);
         }
         w.blocks.clear();
       },
       [](World& w) { return w.allocate(8 * kPageBytes, w.stream) != kNull; }},
      {"PagesThatTwoOthersLend", 8, Promise::kProgramUnharmed,
       [](World& w) {
         const DevicePtr a = w.allocate(4 * kPageBytes, w.side);
         const DevicePtr b = w.allocate(4 * kPageBytes, w.third);
         w.record(b, w.side);
         w.free(a);
         w.free(b);
       },
       [](World& w) { return w.allocate(7 * kPageBytes, w.stream) != kNull; }},
      {"LentPagesGoBackToTheDriver", 8, Promise::kProgramUnharmed,
       [](World& w) {
         w.free(w.allocate(8 * kPageBytes, w.side));
         w.free(w.allocate(5 * kPageBytes, w.stream));
       },
       [](World& w) {
         w.device->empty_cache();
         return w.device->store().counts().held == 0;
       }},
      {"PagesOfAnotherStream", 8, Promise::kProgramUnharmed,
       [](World& w) { w.free(w.allocate(8 * kPageBytes, w.side)); },
       [](World& w) { return w.allocate(5 * kPageBytes, w.stream) != kNull; }},
      {"ShareAFewPages", 16, Promise::kNothingChanged,
       [](World& w) { w.blocks.push_back(w.allocate(3 * kPageBytes, w.stream)); },
       [](World& w) { return w.share(w.blocks[0]) && w.shared.units.size() == 3; }},
      {"ShareManyPages", 64, Promise::kNothingChanged,
       [](World& w) {
         w.allocate(512, w.stream);
         w.blocks.push_back(w.allocate(20 * kPageBytes, w.stream));
         w.allocate(512, w.stream);
       },
       [](World& w) { return w.share(w.blocks[0]); }},
      {"ReclaimWhatWasShared", 64, Promise::kProgramUnharmed,
       [](World& w) {
         w.allocate(512, w.stream);
         w.blocks.push_back(w.allocate(20 * kPageBytes, w.stream));
         FERRO_CHECK(w.share(w.blocks[0]));
         w.free(w.blocks[0]);
       },
       [](World& w) {
         w.device->empty_cache();
         return w.device->store().counts().held == 1;
       }},
      {"OpenSharedMemory", 16, Promise::kNothingChanged,
       [](World& w) {
         w.blocks.push_back(w.allocate(3 * kPageBytes, w.stream));
         FERRO_CHECK(w.share(w.blocks[0]));
       },
       [](World& w) {
         ForeignHandles handles(w.device->driver());
         for (const SharedUnit& unit : w.shared.units) {
           handles.import(ForeignKind::kDescriptor, &unit.descriptor, unit.bytes);
         }
         const DevicePtr base = w.device->imports().open(handles);
         if (base != kNull) {
           w.device->imports().close(base);
           w.device->imports().collect();
         }
         return base != kNull && w.device->imports().count() == 0;
       }},
      {"AccessForAPeer", 16, Promise::kNothingChanged,
       [](World& w) {
         w.allocate(3 * kPageBytes, w.stream);
         w.allocate(kPageBytes, w.side);
       },
       [](World& w) {
         w.device->add_peer(1);
         return true;
       }},
      {"RestoreACheckpoint", 16, Promise::kNothingChanged,
       [](World& w) {
         w.device->pools().hold(kPool);
         const DevicePtr a = w.allocate(kPageBytes, w.stream, kPool);
         w.allocate(512, w.stream, kPool);
         FERRO_CHECK(take_checkpoint(*w.graphs, kPool, &w.checkpoint) == CheckpointError::kNone);
         w.record(a, w.side);
         w.free(a);
         w.allocate(2 * kPageBytes, w.side, kPool);
         SimGpu::finish_all();
       },
       [](World& w) {
         CheckpointChange change;
         return restore_checkpoint(*w.graphs, w.checkpoint, &change) == CheckpointError::kNone;
       }},
      {"JoinAGroup", 64, Promise::kProgramUnharmed,
       [](World& w) {
         for (const PoolId& pool : {kPool, kOtherPool}) {
           w.device->pools().hold(pool);
           FERRO_CHECK(capture(w, pool));
         }
       },
       [](World& w) {
         const std::size_t before = w.device->report().held_bytes();
         return join(w) && shared_pages(w) <= 4 && w.device->report().held_bytes() <= before;
       }},
      {"CaptureInAGroup", 64, Promise::kProgramUnharmed,
       [](World& w) {
         w.device->pools().hold(kPool);
         w.device->pools().hold(kOtherPool);
         FERRO_CHECK(join(w) && capture(w, kOtherPool));
       },
       // A page that a failed attempt left serves the next one.
       [](World& w) { return capture(w, kPool) && shared_pages(w) <= 5; }},
      {"LeaveAGroup", 64, Promise::kProgramUnharmed,
       [](World& w) {
         w.device->pools().hold(kPool);
         w.device->pools().hold(kOtherPool);
         FERRO_CHECK(join(w) && capture(w, kOtherPool) && capture(w, kPool));
       },
       [](World& w) { return w.graphs->leave(kPool) == SharingResult::kOk; }},
      {"ScratchOfPoolsThatNobodyHolds", 64, Promise::kProgramUnharmed,
       [](World& w) {
         w.device->pools().hold(kPool);
         w.device->pools().hold(kOtherPool);
         FERRO_CHECK(join(w) && capture(w, kOtherPool) && capture(w, kPool));
         for (const PoolId& pool : {kPool, kOtherPool}) {
           FERRO_CHECK(w.device->pools().release(pool));
           w.graphs->on_last_release(pool);
         }
       },
       [](World& w) {
         w.device->empty_cache();
         return shared_pages(w) == 0;
       }},
  };
  return all;
}

INSTANTIATE_TEST_SUITE_P(Scenarios, FaultTest, ::testing::ValuesIn(scenarios()),
                         [](const auto& given) { return given.param.name; });

}  // namespace fault_test
}  // namespace ferro
