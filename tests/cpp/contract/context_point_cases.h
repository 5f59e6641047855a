// Contract cases: events behind all work of a context.
#pragma once

#include "contract/capture_cases.h"
#include "contract/peer_cases.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace ferro::contract {
namespace context_point_cases {

inline void require_context_points(const Env& env) {
  if (env.api.ctx_record_event == nullptr) {
    throw Skipped("the driver has no cuCtxRecordEvent");
  }
}

inline CUresult record(const Env& env, CUevent event) {
  return env.api.ctx_record_event(env.context, event);
}

inline void idle_context_completes_it(Env& env) {
  require_context_points(env);
  const Event event(env);
  CONTRACT_OK(env.api.ctx_synchronize());
  CONTRACT_OK(record(env, event));
  CONTRACT_OK(env.api.event_synchronize(event));
  CONTRACT_OK(env.api.event_query(event));
}

// Expects that the point is complete only once the gate on `stream` is open.
inline void expect_covered(Env& env, CUstream stream) {
  const Event event(env);
  Gate gate(env, stream);
  CONTRACT_OK(record(env, event));
  for (int i = 0; i < 20; ++i) {
    CONTRACT_RESULT(env.api.event_query(event), CUDA_ERROR_NOT_READY);
  }
  gate.open();
  CONTRACT_OK(env.api.event_synchronize(event));
  CONTRACT_CHECK(gate.has_passed());
  CONTRACT_OK(env.api.event_query(event));
}

inline void it_covers_every_kind_of_stream(Env& env) {
  require_context_points(env);
  const Stream non_blocking(env, CU_STREAM_NON_BLOCKING);
  const Stream blocking(env, CU_STREAM_DEFAULT);
  const Stream idle(env);
  for (const CUstream stream :
       {static_cast<CUstream>(non_blocking), static_cast<CUstream>(blocking), CUstream{nullptr},
        CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    expect_covered(env, stream);
  }
}

inline void it_covers_all_streams_at_once(Env& env) {
  require_context_points(env);
  const Memory memory(env);
  const Stream first(env);
  const Stream second(env);
  const Event event(env);
  // One gate at a time: a driver may run all host functions on one thread.
  Gate gate(env, second);
  fill_words(env, memory.base(), 3, 64, first);
  CONTRACT_OK(record(env, event));
  CONTRACT_OK(env.api.stream_synchronize(first));
  expect_behind(env, event, gate);
}

inline void it_covers_streams_of_other_threads(Env& env) {
  require_context_points(env);
  const Stream stream(env);
  const Event event(env);
  Gate gate(env, stream);
  CUresult recorded = CUDA_ERROR_UNKNOWN;
  // The context need not be current.
  std::thread([&] { recorded = record(env, event); }).join();
  CONTRACT_OK(recorded);
  expect_behind(env, event, gate);
}

inline void it_covers_destroyed_streams(Env& env) {
  require_context_points(env);
  for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
    Stream stream(env, flags);
    const Event event(env);
    Gate gate(env, stream);
    CONTRACT_OK(env.api.stream_destroy(stream.release()));
    CONTRACT_OK(record(env, event));
    expect_behind(env, event, gate);
  }
}

inline void later_work_is_not_covered(Env& env) {
  require_context_points(env);
  const Stream old_stream(env);
  const Event event(env);
  for (const bool old : {true, false}) {
    CONTRACT_OK(env.api.ctx_synchronize());
    CONTRACT_OK(record(env, event));
    const Stream new_stream(env);
    const CUstream stream = old ? old_stream : new_stream;
    const Gate gate(env, stream);
    CONTRACT_OK(env.api.event_synchronize(event));
    CONTRACT_RESULT(env.api.stream_query(stream), CUDA_ERROR_NOT_READY);
  }
}

inline void streams_go_on_beside_it(Env& env) {
  require_context_points(env);
  const Memory memory(env);
  const Stream busy(env);
  const Stream other(env);
  const Event event(env);
  Gate gate(env, busy);
  CONTRACT_OK(record(env, event));
  fill_words(env, memory.base(), 6, 1, other);
  CONTRACT_OK(env.api.stream_synchronize(other));
  CONTRACT_RESULT(env.api.event_query(event), CUDA_ERROR_NOT_READY);
}

inline void streams_wait_for_it(Env& env) {
  require_context_points(env);
  const Memory memory(env, 2);
  const Stream producer(env);
  const Stream consumer(env);
  const Event point(env);
  fill_words(env, memory.at(0), 1, 64, producer);
  CONTRACT_OK(env.api.stream_synchronize(producer));
  Gate gate(env, producer);
  fill_words(env, memory.at(0), 2, 64, producer);
  CONTRACT_OK(record(env, point));
  CONTRACT_OK(env.api.stream_wait_event(consumer, point, 0));
  CONTRACT_OK(env.api.memcpy_dtod_async(memory.at(1), memory.at(0), 256, consumer));
  CONTRACT_RESULT(env.api.stream_query(consumer), CUDA_ERROR_NOT_READY);
  gate.open();
  CONTRACT_OK(env.api.stream_synchronize(consumer));
  CONTRACT_CHECK(read_word(env, memory.at(1)) == 2);
}

inline void the_last_record_counts(Env& env) {
  require_context_points(env);
  const Stream busy(env);
  const Stream idle(env);
  const Event event(env);
  Gate gate(env, busy);
  CONTRACT_OK(record(env, event));
  CONTRACT_RESULT(env.api.event_query(event), CUDA_ERROR_NOT_READY);
  CONTRACT_OK(env.api.event_record(event, idle));
  CONTRACT_OK(env.api.event_synchronize(event));
  CONTRACT_OK(record(env, event));
  expect_behind(env, event, gate);
}

inline void it_covers_replays(Env& env) {
  require_context_points(env);
  const Memory memory(env);
  const Stream stream(env);
  const Event event(env);
  CaptureScope capture(env, stream);
  fill_words(env, memory.base(), 9, 16, stream);
  const Executable exec(env, capture.finish());
  Gate gate(env, stream);
  CONTRACT_OK(env.api.graph_launch(exec, stream));
  CONTRACT_OK(record(env, event));
  expect_behind(env, event, gate);
  CONTRACT_CHECK(read_word(env, memory.base()) == 9);
}

inline void captures_refuse_it_in_every_mode(Env& env) {
  require_context_points(env);
  const Event event(env);
  for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
    const Stream stream(env, flags);
    for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                            CU_STREAM_CAPTURE_MODE_RELAXED}) {
      for (const bool another_thread : {false, true}) {
        CaptureScope capture(env, stream, mode);
        CUresult result = CUDA_SUCCESS;
        const auto ask = [&] {
          CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
          env.api.thread_exchange_capture_mode(&relaxed);
          result = record(env, event);
          env.api.thread_exchange_capture_mode(&relaxed);
        };
        if (another_thread) {
          std::thread(ask).join();
        } else {
          ask();
        }
        CONTRACT_RESULT(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        CONTRACT_CHECK(capture_cases::status_of(env, stream) ==
                       CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        CUgraph graph = nullptr;
        CONTRACT_RESULT(capture.end(&graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
      }
    }
  }
  // The refusals have no later effect.
  CONTRACT_OK(record(env, event));
  CONTRACT_OK(env.api.event_synchronize(event));
}

inline void it_invalidates_all_captures(Env& env) {
  require_context_points(env);
  const Event event(env);
  const Stream first(env);
  const Stream second(env);
  const CaptureScope first_capture(env, first, CU_STREAM_CAPTURE_MODE_RELAXED);
  const CaptureScope second_capture(env, second, CU_STREAM_CAPTURE_MODE_RELAXED);
  CONTRACT_RESULT(record(env, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  for (const CUstream stream : {static_cast<CUstream>(first), static_cast<CUstream>(second)}) {
    CONTRACT_CHECK(capture_cases::status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  }
}

inline void a_refusal_leaves_the_event(Env& env) {
  require_context_points(env);
  const Stream busy(env);
  const Stream stream(env);
  const Event event(env);
  Gate gate(env, busy);
  CONTRACT_OK(env.api.event_record(event, busy));
  {
    const CaptureScope capture(env, stream);
    CONTRACT_RESULT(record(env, event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  expect_behind(env, event, gate);
}

inline void streams_of_other_devices_wait_for_it(Env& env) {
  require_context_points(env);
  const peer_cases::Peer peer(env);
  const Stream busy(env);
  const Event point(env);
  peer.run([&] {
    const Stream remote(env);
    Gate gate(env, busy);
    CONTRACT_OK(record(env, point));
    CONTRACT_OK(env.api.stream_wait_event(remote, point, 0));
    const Event behind(env);
    CONTRACT_OK(env.api.event_record(behind, remote));
    expect_behind(env, behind, gate);
    CONTRACT_CHECK(gate.has_passed());
  });
}

inline void other_devices_are_not_covered(Env& env) {
  require_context_points(env);
  const peer_cases::Peer peer(env);
  const Event point(env);
  CONTRACT_OK(env.api.ctx_synchronize());
  peer.run([&] {
    const Stream remote(env);
    {
      Gate gate(env, remote);
      CONTRACT_OK(record(env, point));
      CONTRACT_OK(env.api.event_synchronize(point));
      CONTRACT_RESULT(env.api.stream_query(remote), CUDA_ERROR_NOT_READY);
      // Nor does a free of pinned memory wait for them.
      void* pinned = nullptr;
      env.api.ctx_set_current(env.context);
      const CUresult allocated = env.api.mem_host_alloc(&pinned, 1, 0);
      const CUresult freed = env.api.mem_free_host(pinned);
      env.api.ctx_set_current(peer.context());
      CONTRACT_OK(allocated);
      CONTRACT_OK(freed);
      CONTRACT_RESULT(env.api.stream_query(remote), CUDA_ERROR_NOT_READY);
    }
    // A capture on that device does not prevent a point.
    CaptureScope capture(env, remote, CU_STREAM_CAPTURE_MODE_RELAXED);
    CONTRACT_OK(record(env, point));
    CONTRACT_OK(env.api.graph_destroy(capture.finish()));
    const Event foreign(env);
    CONTRACT_RESULT(record(env, foreign), CUDA_ERROR_INVALID_HANDLE);
  });
}

// The allocator does this where it must not record a point.
inline void a_free_of_pinned_memory_waits_beside_captures(Env& env) {
  const Memory memory(env);
  for (const unsigned flags : {CU_STREAM_NON_BLOCKING, CU_STREAM_DEFAULT}) {
    const Stream captured(env, CU_STREAM_NON_BLOCKING);
    const Stream stream(env, flags);
    for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                            CU_STREAM_CAPTURE_MODE_RELAXED}) {
      for (const bool another_thread : {false, true}) {
        CaptureScope capture(env, captured, mode);
        fill_words(env, memory.base(), 5, 64, captured);
        std::vector<CUresult> results;
        const auto free_pinned = [&] {
          results.push_back(env.api.ctx_set_current(env.context));
          CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
          env.api.thread_exchange_capture_mode(&relaxed);
          results.push_back(env.api.memset_d32_async(memory.base(), 7, 64, stream));
          void* pinned = nullptr;
          results.push_back(env.api.mem_host_alloc(&pinned, 1, 0));
          results.push_back(env.api.mem_free_host(pinned));
          results.push_back(env.api.stream_query(stream));
          env.api.thread_exchange_capture_mode(&relaxed);
        };
        if (another_thread) {
          std::thread(free_pinned).join();
        } else {
          free_pinned();
        }
        for (const CUresult result : results) {
          CONTRACT_OK(result);
        }
        const Executable exec(env, capture.finish());
        CONTRACT_OK(env.api.graph_launch(exec, stream));
        CONTRACT_OK(env.api.stream_synchronize(stream));
        CONTRACT_CHECK(read_word(env, memory.base()) == 5);
      }
    }
  }
}

// The gate opens while the free waits.
inline void a_free_of_pinned_memory_waits_for_unknown_streams(Env& env) {
  const Stream captured(env, CU_STREAM_NON_BLOCKING);
  const Stream stream(env, CU_STREAM_NON_BLOCKING);
  CaptureScope capture(env, captured, CU_STREAM_CAPTURE_MODE_RELAXED);
  Gate gate(env, stream);
  std::atomic<bool> is_over{false};
  CUresult freed = CUDA_ERROR_UNKNOWN;
  std::thread waiting([&] {
    void* pinned = nullptr;
    env.api.ctx_set_current(env.context);
    CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    env.api.thread_exchange_capture_mode(&relaxed);
    env.api.mem_host_alloc(&pinned, 1, 0);
    freed = env.api.mem_free_host(pinned);
    is_over = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const bool waited = !is_over;
  gate.open();
  waiting.join();
  CONTRACT_CHECK(waited);
  CONTRACT_OK(freed);
  CONTRACT_OK(env.api.graph_destroy(capture.finish()));
}

}  // namespace context_point_cases

inline std::vector<Case> context_point_case_list() {
  using namespace context_point_cases;
  return {
      {"context_point.idle_context_completes_it", idle_context_completes_it},
      {"context_point.it_covers_every_kind_of_stream", it_covers_every_kind_of_stream},
      {"context_point.it_covers_all_streams_at_once", it_covers_all_streams_at_once},
      {"context_point.it_covers_streams_of_other_threads", it_covers_streams_of_other_threads},
      {"context_point.it_covers_destroyed_streams", it_covers_destroyed_streams},
      {"context_point.later_work_is_not_covered", later_work_is_not_covered},
      {"context_point.streams_go_on_beside_it", streams_go_on_beside_it},
      {"context_point.streams_wait_for_it", streams_wait_for_it},
      {"context_point.the_last_record_counts", the_last_record_counts},
      {"context_point.it_covers_replays", it_covers_replays},
      {"context_point.captures_refuse_it_in_every_mode", captures_refuse_it_in_every_mode},
      {"context_point.it_invalidates_all_captures", it_invalidates_all_captures},
      {"context_point.a_refusal_leaves_the_event", a_refusal_leaves_the_event},
      {"context_point.streams_of_other_devices_wait_for_it", streams_of_other_devices_wait_for_it},
      {"context_point.other_devices_are_not_covered", other_devices_are_not_covered},
      {"context_point.a_free_of_pinned_memory_waits_beside_captures",
       a_free_of_pinned_memory_waits_beside_captures},
      {"context_point.a_free_of_pinned_memory_waits_for_unknown_streams",
       a_free_of_pinned_memory_waits_for_unknown_streams},
  };
}

}  // namespace ferro::contract
