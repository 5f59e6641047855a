// Contract cases: capture modes, status, invalidation, joining.
#pragma once

#include "contract/contract.h"

namespace ferro::contract {
namespace capture_cases {

inline CUstreamCaptureStatus status_of(const Env& env, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CONTRACT_OK(env.api.stream_is_capturing(stream, &status));
  return status;
}

inline std::size_t dependency_count(const Env& env, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  CONTRACT_OK(
      env.api.stream_get_capture_info(stream, &status, &id, &graph, &nodes, &edges, &count));
  CONTRACT_CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id != 0 && graph != nullptr);
  return count;
}

inline std::size_t node_count(const Env& env, CUgraph graph) {
  std::size_t count = 0;
  CONTRACT_OK(env.api.graph_get_nodes(graph, nullptr, &count));
  return count;
}

inline void capture_executes_nothing(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  fill_words(env, memory.base(), 1, 16, stream);
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CaptureScope capture(env, stream);
  fill_words(env, memory.base(), 2, 16, stream);
  const CUgraph graph = capture.finish();
  CONTRACT_CHECK(node_count(env, graph) == 1);
  const Executable exec(env, graph);
  CONTRACT_CHECK(read_word(env, memory.base()) == 1);
  CONTRACT_OK(env.api.graph_upload(exec, stream));
  CONTRACT_OK(env.api.graph_launch(exec, stream));
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(read_word(env, memory.base()) == 2);
}

inline void status_follows_the_capture(Env& env) {
  const Stream stream(env);
  const Stream other(env);
  CONTRACT_CHECK(status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_NONE);
  {
    const CaptureScope capture(env, stream);
    CONTRACT_CHECK(status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CONTRACT_CHECK(status_of(env, other) == CU_STREAM_CAPTURE_STATUS_NONE);
  }
  CONTRACT_CHECK(status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_NONE);
}

inline void dependencies_follow_the_work(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  CaptureScope capture(env, stream);
  CONTRACT_CHECK(dependency_count(env, stream) == 0);
  fill_words(env, memory.base(), 1, 1, stream);
  fill_words(env, memory.base(), 2, 1, stream);
  CONTRACT_CHECK(dependency_count(env, stream) == 1);
  CONTRACT_OK(env.api.graph_destroy(capture.finish()));
}

inline void virtual_memory_does_not_disturb(Env& env) {
  const Stream stream(env);
  CaptureScope capture(env, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUdeviceptr base = 0;
  CONTRACT_OK(env.api.mem_address_reserve(&base, kPage, 0, 0, 0));
  const CUmemGenericAllocationHandle handle = create_page(env);
  map_page(env, base, handle);
  CONTRACT_OK(env.api.mem_unmap(base, kPage));
  CONTRACT_OK(env.api.mem_release(handle));
  CONTRACT_OK(env.api.mem_address_free(base, kPage));
  CONTRACT_CHECK(status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CONTRACT_OK(env.api.graph_destroy(capture.finish()));
}

inline void plain_allocation_invalidates_global(Env& env) {
  const Stream stream(env);
  CaptureScope capture(env, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUdeviceptr at = 0;
  CONTRACT_RESULT(env.api.mem_alloc(&at, kPage), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CONTRACT_CHECK(status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CUgraph graph = nullptr;
  CONTRACT_RESULT(capture.end(&graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  CONTRACT_CHECK(graph == nullptr);
  CONTRACT_CHECK(status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_NONE);
}

inline void other_threads_invalidate_global(Env& env) {
  const Stream stream(env);
  CaptureScope capture(env, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUresult result = CUDA_SUCCESS;
  std::thread([&env, &result] {
    env.api.ctx_set_current(env.context);
    CUdeviceptr at = 0;
    result = env.api.mem_alloc(&at, kPage);
  }).join();
  CONTRACT_RESULT(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CONTRACT_CHECK(status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

inline void other_threads_spare_thread_local(Env& env) {
  const Stream stream(env);
  CaptureScope capture(env, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CUresult result = CUDA_ERROR_UNKNOWN;
  std::thread([&env, &result] {
    env.api.ctx_set_current(env.context);
    CUdeviceptr at = 0;
    result = env.api.mem_alloc(&at, kPage);
    if (result == CUDA_SUCCESS) {
      CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
      env.api.thread_exchange_capture_mode(&mode);
      env.api.mem_free(at);
    }
  }).join();
  CONTRACT_OK(result);
  CONTRACT_CHECK(status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

inline void relaxed_thread_may_allocate(Env& env) {
  const Stream stream(env);
  CaptureScope capture(env, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CONTRACT_OK(env.api.thread_exchange_capture_mode(&mode));
  CUdeviceptr at = 0;
  const CUresult allocated = env.api.mem_alloc(&at, kPage);
  const CUstreamCaptureStatus status = status_of(env, stream);
  CONTRACT_OK(env.api.thread_exchange_capture_mode(&mode));
  CONTRACT_CHECK(mode == CU_STREAM_CAPTURE_MODE_RELAXED);
  CONTRACT_OK(env.api.graph_destroy(capture.finish()));
  CONTRACT_OK(allocated);
  CONTRACT_OK(env.api.mem_free(at));
  CONTRACT_CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

inline void synchronising_a_captured_stream_is_refused(Env& env) {
  const Stream stream(env);
  CaptureScope capture(env, stream);
  CONTRACT_RESULT(env.api.stream_synchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CONTRACT_CHECK(status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

inline void waiting_for_any_stream_invalidates(Env& env) {
  const Stream stream(env);
  const Stream other(env);
  for (const bool query : {true, false}) {
    CaptureScope capture(env, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CONTRACT_RESULT(query ? env.api.stream_query(other) : env.api.stream_synchronize(other),
                    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CONTRACT_CHECK(status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  }
}

inline void waiting_for_the_context_invalidates_all_modes(Env& env) {
  const Stream stream(env);
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                          CU_STREAM_CAPTURE_MODE_RELAXED}) {
    CaptureScope capture(env, stream, mode);
    CONTRACT_RESULT(env.api.ctx_synchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CONTRACT_CHECK(status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  }
}

inline void asking_any_event_invalidates_global(Env& env) {
  const Stream stream(env);
  const Stream other(env);
  const Event event(env);
  CONTRACT_OK(env.api.event_record(event, other));
  {
    CaptureScope capture(env, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CONTRACT_RESULT(env.api.event_query(event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CONTRACT_CHECK(status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  }
  // A thread in relaxed mode may query events, and any thread may record events and make streams
  // wait.
  CaptureScope capture(env, stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CONTRACT_OK(env.api.thread_exchange_capture_mode(&mode));
  const CUresult asked = env.api.event_query(event);
  CONTRACT_OK(env.api.thread_exchange_capture_mode(&mode));
  CONTRACT_CHECK(asked == CUDA_SUCCESS || asked == CUDA_ERROR_NOT_READY);
  CONTRACT_OK(env.api.event_record(event, other));
  CONTRACT_OK(env.api.stream_wait_event(other, event, 0));
  CONTRACT_OK(env.api.graph_destroy(capture.finish()));
}

inline void capture_never_begins_twice(Env& env) {
  const Stream stream(env);
  CaptureScope capture(env, stream);
  CONTRACT_RESULT(env.api.stream_begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
                  CUDA_ERROR_ILLEGAL_STATE);
  CONTRACT_OK(env.api.graph_destroy(capture.finish()));
}

inline void asking_a_captured_event_is_refused(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  const Event event(env);
  CaptureScope capture(env, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  fill_words(env, memory.base(), 1, 1, stream);
  CONTRACT_OK(env.api.event_record(event, stream));
  CONTRACT_RESULT(env.api.event_query(event), CUDA_ERROR_CAPTURED_EVENT);
  CONTRACT_CHECK(status_of(env, stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  CUgraph graph = nullptr;
  CONTRACT_RESULT(capture.end(&graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  // A new record makes the event usable again.
  CONTRACT_OK(env.api.event_record(event, stream));
  CONTRACT_OK(env.api.event_synchronize(event));
}

inline void work_that_is_not_joined_is_an_error(Env& env) {
  const Memory memory(env);
  const Stream origin(env);
  const Stream side(env);
  const Event forked(env);
  CaptureScope capture(env, origin);
  fill_words(env, memory.base(), 1, 1, origin);
  CONTRACT_OK(env.api.event_record(forked, origin));
  CONTRACT_OK(env.api.stream_wait_event(side, forked, 0));
  fill_words(env, memory.base() + 4, 1, 1, side);
  CUgraph graph = nullptr;
  CONTRACT_RESULT(capture.end(&graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  CONTRACT_CHECK(graph == nullptr);
  CONTRACT_CHECK(status_of(env, side) == CU_STREAM_CAPTURE_STATUS_NONE);
}

inline void only_the_origin_ends_a_capture(Env& env) {
  const Memory memory(env);
  const Stream origin(env);
  const Stream side(env);
  const Event forked(env);
  const CaptureScope capture(env, origin);
  fill_words(env, memory.base(), 1, 1, origin);
  CONTRACT_OK(env.api.event_record(forked, origin));
  CONTRACT_OK(env.api.stream_wait_event(side, forked, 0));
  CUgraph graph = nullptr;
  CONTRACT_RESULT(env.api.stream_end_capture(side, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
}

inline void work_from_outside_is_isolated(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  const Stream outside(env);
  const Event event(env);
  fill_words(env, memory.base(), 1, 1, outside);
  CONTRACT_OK(env.api.event_record(event, outside));
  const CaptureScope capture(env, stream);
  CONTRACT_RESULT(env.api.stream_wait_event(stream, event, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
}

inline void legacy_stream_cannot_be_captured(Env& env) {
  CONTRACT_RESULT(env.api.stream_begin_capture(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED),
                  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

inline void legacy_stream_meets_a_captured_blocking_stream(Env& env) {
  const Memory memory(env);
  const Stream blocking(env, CU_STREAM_DEFAULT);
  const CaptureScope capture(env, blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  // A query fails too, but does not invalidate the capture.
  CONTRACT_RESULT(env.api.stream_is_capturing(nullptr, &status),
                  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CONTRACT_CHECK(status_of(env, blocking) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CONTRACT_RESULT(env.api.memset_d32_async(memory.base(), 1, 1, nullptr),
                  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CONTRACT_CHECK(status_of(env, blocking) == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
}

inline void capture_ends_on_its_own_thread(Env& env) {
  const Stream stream(env);
  const CaptureScope capture(env, stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CUresult result = CUDA_SUCCESS;
  std::thread([&env, &result, &stream] {
    env.api.ctx_set_current(env.context);
    CUgraph graph = nullptr;
    result = env.api.stream_end_capture(stream, &graph);
  }).join();
  CONTRACT_RESULT(result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
}

inline void ending_nothing_is_refused(Env& env) {
  const Stream stream(env);
  CUgraph graph = nullptr;
  CONTRACT_REFUSED(env.api.stream_end_capture(stream, &graph));
}

inline void ids_ascend(Env& env) {
  const Stream first(env);
  const Stream second(env, CU_STREAM_DEFAULT);
  cuuint64_t last = 0;
  for (int i = 0; i < 3; ++i) {
    for (const CUstream stream : {static_cast<CUstream>(first), static_cast<CUstream>(second)}) {
      const CaptureScope capture(env, stream);
      CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
      cuuint64_t id = 0;
      CONTRACT_OK(env.api.stream_get_capture_info(stream, &status, &id, nullptr, nullptr, nullptr,
                                                  nullptr));
      CONTRACT_CHECK(id > last);
      last = id;
    }
  }
}

}  // namespace capture_cases

inline std::vector<Case> capture_case_list() {
  using namespace capture_cases;
  return {
      {"capture.capture_executes_nothing", capture_executes_nothing},
      {"capture.status_follows_the_capture", status_follows_the_capture},
      {"capture.dependencies_follow_the_work", dependencies_follow_the_work},
      {"capture.virtual_memory_does_not_disturb", virtual_memory_does_not_disturb},
      {"capture.plain_allocation_invalidates_global", plain_allocation_invalidates_global},
      {"capture.other_threads_invalidate_global", other_threads_invalidate_global},
      {"capture.other_threads_spare_thread_local", other_threads_spare_thread_local},
      {"capture.relaxed_thread_may_allocate", relaxed_thread_may_allocate},
      {"capture.synchronising_a_captured_stream_is_refused",
       synchronising_a_captured_stream_is_refused},
      {"capture.waiting_for_any_stream_invalidates", waiting_for_any_stream_invalidates},
      {"capture.waiting_for_the_context_invalidates_all_modes",
       waiting_for_the_context_invalidates_all_modes},
      {"capture.asking_any_event_invalidates_global", asking_any_event_invalidates_global},
      {"capture.capture_never_begins_twice", capture_never_begins_twice},
      {"capture.asking_a_captured_event_is_refused", asking_a_captured_event_is_refused},
      {"capture.work_that_is_not_joined_is_an_error", work_that_is_not_joined_is_an_error},
      {"capture.only_the_origin_ends_a_capture", only_the_origin_ends_a_capture},
      {"capture.work_from_outside_is_isolated", work_from_outside_is_isolated},
      {"capture.legacy_stream_cannot_be_captured", legacy_stream_cannot_be_captured},
      {"capture.legacy_stream_meets_a_captured_blocking_stream",
       legacy_stream_meets_a_captured_blocking_stream},
      {"capture.capture_ends_on_its_own_thread", capture_ends_on_its_own_thread},
      {"capture.ending_nothing_is_refused", ending_nothing_is_refused},
      {"capture.ids_ascend", ids_ascend},
  };
}

}  // namespace ferro::contract
