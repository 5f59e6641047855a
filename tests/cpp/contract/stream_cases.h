// Contract cases: streams, events, the legacy default stream, host memory.
#pragma once

#include "contract/contract.h"

namespace ferro::contract {
namespace stream_cases {

inline void wait_until_done(const Env& env, CUevent event) {
  CUresult result = CUDA_ERROR_NOT_READY;
  for (int polls = 0; result == CUDA_ERROR_NOT_READY && polls < 1000000; ++polls) {
    result = env.api.event_query(event);
  }
  CONTRACT_OK(result);
}

inline void unrecorded_event_is_complete(Env& env) {
  const Event event(env);
  const Stream stream(env);
  CONTRACT_OK(env.api.event_query(event));
  CONTRACT_OK(env.api.event_synchronize(event));
  CONTRACT_OK(env.api.stream_wait_event(stream, event, 0));
  CONTRACT_OK(env.api.stream_synchronize(stream));
}

inline void polling_sees_completion(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  const Event event(env);
  fill_words(env, memory.base(), 1, 16, stream);
  CONTRACT_OK(env.api.event_record(event, stream));
  wait_until_done(env, event);
  CONTRACT_OK(env.api.stream_query(stream));
}

inline void event_is_complete_after_its_work(Env& env) {
  const Stream stream(env);
  const Event event(env);
  Gate gate(env, stream);
  CONTRACT_OK(env.api.event_record(event, stream));
  CONTRACT_RESULT(env.api.event_query(event), CUDA_ERROR_NOT_READY);
  CONTRACT_RESULT(env.api.stream_query(stream), CUDA_ERROR_NOT_READY);
  gate.open();
  CONTRACT_OK(env.api.event_synchronize(event));
  CONTRACT_OK(env.api.event_query(event));
}

inline void event_means_its_last_record(Env& env) {
  const Stream stream(env);
  const Event event(env);
  CONTRACT_OK(env.api.event_record(event, stream));
  CONTRACT_OK(env.api.event_synchronize(event));
  Gate gate(env, stream);
  CONTRACT_OK(env.api.event_record(event, stream));
  expect_behind(env, event, gate);
}

inline void streams_are_independent(Env& env) {
  const Memory memory(env);
  const Stream busy(env);
  const Stream other(env);
  Gate gate(env, busy);
  fill_words(env, memory.base(), 6, 1, other);
  CONTRACT_OK(env.api.stream_synchronize(other));
  CONTRACT_CHECK(read_word(env, memory.base()) == 6);
  CONTRACT_RESULT(env.api.stream_query(busy), CUDA_ERROR_NOT_READY);
}

inline void wait_orders_streams(Env& env) {
  const Memory memory(env, 2);
  const Stream producer(env);
  const Stream consumer(env);
  const Event ready(env);
  fill_words(env, memory.at(0), 1, 64, producer);
  CONTRACT_OK(env.api.stream_synchronize(producer));
  Gate gate(env, producer);
  fill_words(env, memory.at(0), 2, 64, producer);
  CONTRACT_OK(env.api.event_record(ready, producer));
  CONTRACT_OK(env.api.stream_wait_event(consumer, ready, 0));
  CONTRACT_OK(env.api.memcpy_dtod_async(memory.at(1), memory.at(0), 256, consumer));
  CONTRACT_RESULT(env.api.stream_query(consumer), CUDA_ERROR_NOT_READY);
  gate.open();
  CONTRACT_OK(env.api.stream_synchronize(consumer));
  CONTRACT_CHECK(read_word(env, memory.at(1)) == 2);
}

inline void wait_means_the_record_before_it(Env& env) {
  const Stream producer(env);
  const Stream consumer(env);
  const Event event(env);
  CONTRACT_OK(env.api.event_record(event, producer));
  CONTRACT_OK(env.api.stream_wait_event(consumer, event, 0));
  Gate gate(env, producer);
  // A later record must not hold the earlier wait.
  CONTRACT_OK(env.api.event_record(event, producer));
  CONTRACT_OK(env.api.stream_synchronize(consumer));
  CONTRACT_RESULT(env.api.event_query(event), CUDA_ERROR_NOT_READY);
}

inline void destroyed_event_keeps_its_wait(Env& env) {
  const Memory memory(env, 2);
  const Stream producer(env);
  const Stream consumer(env);
  Gate gate(env, producer);
  fill_words(env, memory.at(0), 8, 1, producer);
  {
    const Event event(env);
    CONTRACT_OK(env.api.event_record(event, producer));
    CONTRACT_OK(env.api.stream_wait_event(consumer, event, 0));
  }
  CONTRACT_OK(env.api.memcpy_dtod_async(memory.at(1), memory.at(0), 4, consumer));
  CONTRACT_RESULT(env.api.stream_query(consumer), CUDA_ERROR_NOT_READY);
  gate.open();
  CONTRACT_OK(env.api.stream_synchronize(consumer));
  CONTRACT_CHECK(read_word(env, memory.at(1)) == 8);
}

inline void stream_runs_in_order(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  HostWords words(env, 8);
  for (unsigned i = 0; i < 8; ++i) {
    fill_words(env, memory.base(), i, 1, stream);
    CONTRACT_OK(env.api.memcpy_dtoh_async(words.data() + i, memory.base(), 4, stream));
  }
  CONTRACT_OK(env.api.stream_synchronize(stream));
  for (unsigned i = 0; i < 8; ++i) {
    CONTRACT_CHECK(words[i] == i);
  }
}

inline void host_functions_run_in_order(Env& env) {
  const Stream stream(env);
  std::vector<int> order;
  struct Entry {
    std::vector<int>* order;
    int value;
  };
  Entry entries[] = {{&order, 1}, {&order, 2}, {&order, 3}};
  for (Entry& entry : entries) {
    CONTRACT_OK(env.api.launch_host_func(
        stream,
        [](void* argument) {
          auto* given = static_cast<Entry*>(argument);
          given->order->push_back(given->value);
        },
        &entry));
  }
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK((order == std::vector<int>{1, 2, 3}));
}

inline void destroyed_stream_finishes_its_work(Env& env) {
  const Memory memory(env);
  Stream stream(env);
  Gate gate(env, stream);
  fill_words(env, memory.base(), 12, 1, stream);
  CONTRACT_OK(env.api.stream_destroy(stream.release()));
  gate.open();
  CONTRACT_OK(env.api.ctx_synchronize());
  CONTRACT_CHECK(read_word(env, memory.base()) == 12);
}

inline void context_waits_for_all_streams(Env& env) {
  const Memory memory(env, 2);
  const Stream first(env);
  const Stream second(env, CU_STREAM_DEFAULT);
  fill_words(env, memory.at(0), 1, 16, first);
  fill_words(env, memory.at(1), 2, 16, second);
  CONTRACT_OK(env.api.ctx_synchronize());
  CONTRACT_OK(env.api.stream_query(first));
  CONTRACT_OK(env.api.stream_query(second));
}

inline void legacy_stream_waits_for_blocking_streams(Env& env) {
  const Stream blocking(env, CU_STREAM_DEFAULT);
  const Memory memory(env);
  const Event event(env);
  Gate gate(env, blocking);
  fill_words(env, memory.base(), 1, 1, CU_STREAM_LEGACY);
  CONTRACT_OK(env.api.event_record(event, nullptr));
  expect_behind(env, event, gate);
}

inline void blocking_streams_wait_for_the_legacy_stream(Env& env) {
  const Stream first(env, CU_STREAM_DEFAULT);
  const Stream second(env, CU_STREAM_DEFAULT);
  const Memory memory(env);
  const Event event(env);
  Gate gate(env, first);
  fill_words(env, memory.base(), 1, 1, nullptr);
  // The second stream is held through the legacy stream, although it never waited for the first.
  fill_words(env, memory.base(), 2, 1, second);
  CONTRACT_OK(env.api.event_record(event, second));
  expect_behind(env, event, gate);
  CONTRACT_CHECK(read_word(env, memory.base()) == 2);
}

inline void non_blocking_streams_ignore_the_legacy_stream(Env& env) {
  const Stream free_stream(env, CU_STREAM_NON_BLOCKING);
  const Memory memory(env);
  Gate gate(env, free_stream);
  fill_words(env, memory.base(), 4, 1, nullptr);
  CONTRACT_OK(env.api.stream_synchronize(nullptr));
  CONTRACT_RESULT(env.api.stream_query(free_stream), CUDA_ERROR_NOT_READY);
}

inline void pageable_source_may_be_reused(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  unsigned word = 77;
  CONTRACT_OK(env.api.memcpy_htod_async(memory.base(), &word, sizeof(word), stream));
  word = 78;
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(read_word(env, memory.base()) == 77);
}

inline void pageable_target_is_filled_on_return(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  fill_words(env, memory.base(), 55, 1, stream);
  unsigned word = 0;
  CONTRACT_OK(env.api.memcpy_dtoh_async(&word, memory.base(), sizeof(word), stream));
  CONTRACT_CHECK(word == 55);
}

inline void pinned_source_is_read_late(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  HostWords words(env, 1);
  words[0] = 1;
  Gate gate(env, stream);
  CONTRACT_OK(env.api.memcpy_htod_async(memory.base(), words.data(), 4, stream));
  words[0] = 2;
  gate.open();
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(read_word(env, memory.base()) == 2);
}

}  // namespace stream_cases

inline std::vector<Case> stream_case_list() {
  using namespace stream_cases;
  return {
      {"stream.unrecorded_event_is_complete", unrecorded_event_is_complete},
      {"stream.polling_sees_completion", polling_sees_completion},
      {"stream.event_is_complete_after_its_work", event_is_complete_after_its_work},
      {"stream.event_means_its_last_record", event_means_its_last_record},
      {"stream.streams_are_independent", streams_are_independent},
      {"stream.wait_orders_streams", wait_orders_streams},
      {"stream.wait_means_the_record_before_it", wait_means_the_record_before_it},
      {"stream.destroyed_event_keeps_its_wait", destroyed_event_keeps_its_wait},
      {"stream.stream_runs_in_order", stream_runs_in_order},
      {"stream.host_functions_run_in_order", host_functions_run_in_order},
      {"stream.destroyed_stream_finishes_its_work", destroyed_stream_finishes_its_work},
      {"stream.context_waits_for_all_streams", context_waits_for_all_streams},
      {"stream.legacy_stream_waits_for_blocking_streams", legacy_stream_waits_for_blocking_streams},
      {"stream.blocking_streams_wait_for_the_legacy_stream",
       blocking_streams_wait_for_the_legacy_stream},
      {"stream.non_blocking_streams_ignore_the_legacy_stream",
       non_blocking_streams_ignore_the_legacy_stream},
      {"stream.pageable_source_may_be_reused", pageable_source_may_be_reused},
      {"stream.pageable_target_is_filled_on_return", pageable_target_is_filled_on_return},
      {"stream.pinned_source_is_read_late", pinned_source_is_read_late},
  };
}

}  // namespace ferro::contract
