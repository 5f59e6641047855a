// Contract cases: graphs, their memory and their replay.
#pragma once

#include "contract/capture_cases.h"
#include "ferro/driver/driver.h"

#include <algorithm>
#include <vector>

namespace ferro::contract {
namespace graph_cases {

using capture_cases::node_count;
using capture_cases::status_of;

inline void captured_fill_may_lack_memory(Env& env) {
  const Reservation range(env, kPage);
  const Stream stream(env);
  CaptureScope capture(env, stream);
  fill_words(env, range.base(), 3, 16, stream);
  const CUgraph graph = capture.finish();
  // But a graph needs its memory when it is instantiated.
  CUgraphExec exec = nullptr;
  const CUresult without = env.api.graph_instantiate(&exec, graph, 0);
  const CUmemGenericAllocationHandle handle = create_page(env);
  map_page(env, range.base(), handle);
  CONTRACT_OK(env.api.mem_release(handle));
  {
    const Executable good(env, graph);
    CONTRACT_OK(env.api.graph_launch(good, stream));
    CONTRACT_OK(env.api.stream_synchronize(stream));
  }
  const unsigned word = read_word(env, range.base());
  CONTRACT_OK(env.api.mem_unmap(range.base(), kPage));
  CONTRACT_RESULT(without, CUDA_ERROR_INVALID_VALUE);
  CONTRACT_CHECK(word == 3);
}

inline void captured_copy_needs_memory(Env& env) {
  const Reservation range(env, kPage);
  const Memory memory(env);
  const Stream stream(env);
  const CaptureScope capture(env, stream);
  CONTRACT_RESULT(env.api.memcpy_dtod_async(range.base(), memory.base(), 64, stream),
                  CUDA_ERROR_INVALID_VALUE);
}

inline void replay_works_on_the_pages_of_the_moment(Env& env) {
  const Reservation range(env, 2 * kPage);
  const CUdeviceptr target = range.base();
  const CUdeviceptr spare = range.base() + kPage;
  const CUmemGenericAllocationHandle first = create_page(env);
  const CUmemGenericAllocationHandle second = create_page(env);
  map_page(env, target, first);
  unsigned old_page = 0;
  unsigned new_page = 0;
  {
    const Stream stream(env);
    fill_words(env, target, 1, 16, stream);
    CONTRACT_OK(env.api.stream_synchronize(stream));
    CaptureScope capture(env, stream);
    fill_words(env, target, 9, 16, stream);
    const Executable exec(env, capture.finish());
    // Another page takes the address; the first can be seen at the spare one.
    CONTRACT_OK(env.api.mem_unmap(target, kPage));
    map_page(env, target, second);
    map_page(env, spare, first);
    CONTRACT_OK(env.api.graph_launch(exec, stream));
    CONTRACT_OK(env.api.stream_synchronize(stream));
    old_page = read_word(env, spare);
    new_page = read_word(env, target);
  }
  CONTRACT_OK(env.api.mem_unmap(range.base(), 2 * kPage));
  CONTRACT_OK(env.api.mem_release(first));
  CONTRACT_OK(env.api.mem_release(second));
  CONTRACT_CHECK(old_page == 1 && new_page == 9);
}

inline void captured_value_is_written_by_each_launch(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  HostWords words(env, 2);
  CaptureScope capture(env, stream);
  CONTRACT_OK(env.api.stream_write_value64(stream, memory.base(), 5, 0));
  CONTRACT_OK(env.api.memcpy_dtoh_async(words.data(), memory.base(), 8, stream));
  const Executable exec(env, capture.finish());
  for (int i = 0; i < 2; ++i) {
    fill_words(env, memory.base(), 7, 2, stream);
    CONTRACT_OK(env.api.graph_launch(exec, stream));
    CONTRACT_OK(env.api.stream_synchronize(stream));
    CONTRACT_CHECK(words[0] == 5 && words[1] == 0);
  }
}

inline void launch_is_ordered_in_its_stream(Env& env) {
  const Memory memory(env, 2);
  const Stream stream(env);
  HostWords words(env, 2);
  CaptureScope capture(env, stream);
  CONTRACT_OK(env.api.memcpy_dtod_async(memory.at(1), memory.at(0), 256, stream));
  const Executable exec(env, capture.finish());
  for (unsigned i = 0; i < 2; ++i) {
    fill_words(env, memory.at(0), 10 + i, 64, stream);
    CONTRACT_OK(env.api.graph_launch(exec, stream));
    CONTRACT_OK(env.api.memcpy_dtoh_async(words.data() + i, memory.at(1), 4, stream));
  }
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(words[0] == 10 && words[1] == 11);
}

inline void launch_waits_for_queued_work(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  CaptureScope capture(env, stream);
  fill_words(env, memory.base(), 5, 1, stream);
  const Executable exec(env, capture.finish());
  Gate gate(env, stream);
  CONTRACT_OK(env.api.graph_launch(exec, stream));
  CONTRACT_RESULT(env.api.stream_query(stream), CUDA_ERROR_NOT_READY);
  gate.open();
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(read_word(env, memory.base()) == 5);
}

inline void replays_of_one_graph_never_overlap(Env& env) {
  struct Overlap {
    std::atomic<int> active{0};
    std::atomic<int> most{0};
  } overlap;
  const Stream stream(env);
  const Stream first(env);
  const Stream second(env);
  CaptureScope capture(env, stream);
  CONTRACT_OK(env.api.launch_host_func(
      stream,
      [](void* given) {
        auto* seen = static_cast<Overlap*>(given);
        seen->most = std::max(seen->most.load(), ++seen->active);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        --seen->active;
      },
      &overlap));
  const Executable exec(env, capture.finish());
  for (int i = 0; i < 3; ++i) {
    CONTRACT_OK(env.api.graph_launch(exec, first));
    CONTRACT_OK(env.api.graph_launch(exec, second));
  }
  CONTRACT_OK(env.api.ctx_synchronize());
  CONTRACT_CHECK(overlap.most == 1);
}

inline void destroyed_exec_finishes_its_replay(Env& env) {
  env.require_queued_work();
  const Memory memory(env);
  const Stream stream(env);
  CaptureScope capture(env, stream);
  fill_words(env, memory.base(), 6, 1, stream);
  const CUgraph graph = capture.finish();
  Gate gate(env, stream);
  {
    const Executable exec(env, graph);
    CONTRACT_OK(env.api.graph_launch(exec, stream));
    // Releases a driver that waits in the destructor.
    gate.open();
  }
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(read_word(env, memory.base()) == 6);
}

inline void empty_capture_gives_an_empty_graph(Env& env) {
  const Stream stream(env);
  CaptureScope capture(env, stream);
  const CUgraph graph = capture.finish();
  CONTRACT_CHECK(node_count(env, graph) == 0);
  const Executable exec(env, graph);
  CONTRACT_OK(env.api.graph_launch(exec, stream));
  CONTRACT_OK(env.api.stream_synchronize(stream));
}

inline void fork_and_join(Env& env) {
  const Memory memory(env, 3);
  const Stream origin(env);
  const Stream side(env);
  const Event forked(env);
  const Event joined(env);
  CaptureScope capture(env, origin);
  fill_words(env, memory.at(0), 4, 64, origin);
  CONTRACT_OK(env.api.event_record(forked, origin));
  CONTRACT_OK(env.api.stream_wait_event(side, forked, 0));
  CONTRACT_CHECK(status_of(env, side) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CONTRACT_OK(env.api.memcpy_dtod_async(memory.at(1), memory.at(0), 256, side));
  CONTRACT_OK(env.api.event_record(joined, side));
  CONTRACT_OK(env.api.stream_wait_event(origin, joined, 0));
  CONTRACT_OK(env.api.memcpy_dtod_async(memory.at(2), memory.at(1), 256, origin));
  const CUgraph graph = capture.finish();
  CONTRACT_CHECK(node_count(env, graph) == 3);
  CONTRACT_CHECK(status_of(env, side) == CU_STREAM_CAPTURE_STATUS_NONE);
  const Executable exec(env, graph);
  CONTRACT_OK(env.api.graph_launch(exec, origin));
  CONTRACT_OK(env.api.stream_synchronize(origin));
  CONTRACT_CHECK(read_word(env, memory.at(2)) == 4);
}

// Each graph has the page at its own address, and one event orders all launches.
inline void graphs_take_turns_on_an_aliased_page(Env& env) {
  constexpr std::size_t kGraphs = 2;
  const Reservation range(env, kGraphs * kPage);
  const CUmemGenericAllocationHandle handle = create_page(env);
  for (std::size_t i = 0; i < kGraphs; ++i) {
    map_page(env, range.base() + i * kPage, handle);
  }
  CONTRACT_OK(env.api.mem_release(handle));
  unsigned wrong = 0;
  {
    const Memory results(env, kGraphs);
    const Stream first(env);
    const Stream second(env);
    const Event last(env);
    const auto capture = [&](std::size_t i) {
      CaptureScope scope(env, first);
      const CUdeviceptr scratch = range.base() + i * kPage;
      fill_words(env, scratch, static_cast<unsigned>(7 + i), kPage / 4, first);
      CONTRACT_OK(env.api.memcpy_dtod_async(results.at(i), scratch, kPage, first));
      return scope.finish();
    };
    const Executable a(env, capture(0));
    const Executable b(env, capture(1));
    for (int round = 0; round < 20; ++round) {
      for (std::size_t i = 0; i < kGraphs; ++i) {
        fill_words(env, results.at(i), 0, kPage / 4, i == 0 ? first : second);
      }
      for (std::size_t i = 0; i < kGraphs; ++i) {
        const CUstream stream = i == 0 ? first : second;
        CONTRACT_OK(env.api.stream_wait_event(stream, last, 0));
        CONTRACT_OK(env.api.graph_launch(i == 0 ? a : b, stream));
        CONTRACT_OK(env.api.event_record(last, stream));
      }
    }
    CONTRACT_OK(env.api.stream_synchronize(first));
    CONTRACT_OK(env.api.stream_synchronize(second));
    for (std::size_t i = 0; i < kGraphs; ++i) {
      for (std::size_t at = 0; at < kPage; at += kPage / 8) {
        wrong += read_word(env, results.at(i) + at) != 7 + i ? 1 : 0;
      }
    }
  }
  CONTRACT_OK(env.api.mem_unmap(range.base(), kGraphs * kPage));
  CONTRACT_CHECK(wrong == 0);
}

// This holds also while the capture runs.
inline void nodes_tell_where_they_read_and_write(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  const Stream other(env);
  Driver driver(env.api, env.device);
  const StreamId id{reinterpret_cast<std::uint64_t>(static_cast<CUstream>(stream))};
  CONTRACT_CHECK(driver.captured_words(id).empty());
  CaptureScope capture(env, stream);
  fill_words(env, memory.base(), 1, 16, stream);
  CONTRACT_OK(env.api.memcpy_dtod_async(memory.base() + 256, memory.base() + 512, 64, stream));
  const Event forked(env);
  CONTRACT_OK(env.api.event_record(forked, stream));
  CONTRACT_OK(env.api.stream_wait_event(other, forked, 0));
  fill_words(env, memory.base() + 1024, 2, 16, other);
  const Event joined(env);
  CONTRACT_OK(env.api.event_record(joined, other));
  CONTRACT_OK(env.api.stream_wait_event(stream, joined, 0));
  const std::vector<DevicePtr> words = driver.captured_words(id);
  const CUgraph graph = capture.finish();
  CONTRACT_CHECK(node_count(env, graph) == 3);
  CONTRACT_OK(env.api.graph_destroy(graph));
  for (const std::size_t offset : {0, 256, 512, 1024}) {
    CONTRACT_CHECK(std::ranges::binary_search(words, DevicePtr{memory.base() + offset}));
  }
  CONTRACT_CHECK(words.size() == 4);
}

}  // namespace graph_cases

inline std::vector<Case> graph_case_list() {
  using namespace graph_cases;
  return {
      {"graph.captured_fill_may_lack_memory", captured_fill_may_lack_memory},
      {"graph.captured_copy_needs_memory", captured_copy_needs_memory},
      {"graph.replay_works_on_the_pages_of_the_moment", replay_works_on_the_pages_of_the_moment},
      {"graph.captured_value_is_written_by_each_launch", captured_value_is_written_by_each_launch},
      {"graph.launch_is_ordered_in_its_stream", launch_is_ordered_in_its_stream},
      {"graph.launch_waits_for_queued_work", launch_waits_for_queued_work},
      {"graph.replays_of_one_graph_never_overlap", replays_of_one_graph_never_overlap},
      {"graph.destroyed_exec_finishes_its_replay", destroyed_exec_finishes_its_replay},
      {"graph.empty_capture_gives_an_empty_graph", empty_capture_gives_an_empty_graph},
      {"graph.fork_and_join", fork_and_join},
      {"graph.nodes_tell_where_they_read_and_write", nodes_tell_where_they_read_and_write},
      {"graph.take_turns_on_an_aliased_page", graphs_take_turns_on_an_aliased_page},
  };
}

}  // namespace ferro::contract
