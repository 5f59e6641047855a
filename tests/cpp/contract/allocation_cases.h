// Contract cases: running out of memory, plain allocations, errors.
#pragma once

#include "contract/contract.h"

namespace ferro::contract {
namespace allocation_cases {

inline void sizes_must_be_whole_pages(Env& env) {
  const CUmemAllocationProp properties = page_properties(env);
  CUmemGenericAllocationHandle handle = 0;
  CONTRACT_RESULT(env.api.mem_create(&handle, kPage / 2, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  CONTRACT_RESULT(env.api.mem_create(&handle, 0, &properties, 0), CUDA_ERROR_INVALID_VALUE);
}

inline void out_of_memory_is_a_value(Env& env) {
  const CUmemAllocationProp properties = page_properties(env);
  std::size_t free = 0;
  std::size_t total = 0;
  CONTRACT_OK(env.api.mem_get_info(&free, &total));
  const std::size_t too_much = align_up(total, kPage) + kPage;
  CUmemGenericAllocationHandle handle = 0;
  CONTRACT_RESULT(env.api.mem_create(&handle, too_much, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  CUdeviceptr at = 0;
  CONTRACT_RESULT(env.api.mem_alloc(&at, too_much), CUDA_ERROR_OUT_OF_MEMORY);
  // Little memory was lost (the first attempt may make the driver keep tables), and the device
  // still works.
  CONTRACT_CHECK(free_bytes(env) + 64 * kMiB >= free);
  const Memory memory(env);
  const Stream stream(env);
  fill_words(env, memory.base(), 3, 1, stream);
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(read_word(env, memory.base()) == 3);
}

inline void full_device_recovers(Env& env) {
  const std::size_t before = free_bytes(env);
  const CUmemAllocationProp properties = page_properties(env);
  std::vector<CUmemGenericAllocationHandle> handles;
  std::size_t bytes = align_down(before / 2, kPage);
  // Requests of halving sizes fill the device to the last pages.
  while (bytes >= kPage) {
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = env.api.mem_create(&handle, bytes, &properties, 0);
    if (result == CUDA_SUCCESS) {
      handles.push_back(handle);
    } else {
      CONTRACT_RESULT(result, CUDA_ERROR_OUT_OF_MEMORY);
      bytes = align_down(bytes / 2, kPage);
    }
  }
  CUmemGenericAllocationHandle handle = 0;
  const CUresult full = env.api.mem_create(&handle, kPage, &properties, 0);
  for (const auto held : handles) {
    CONTRACT_OK(env.api.mem_release(held));
  }
  CONTRACT_RESULT(full, CUDA_ERROR_OUT_OF_MEMORY);
  CONTRACT_CHECK(free_bytes(env) == before);
  CONTRACT_OK(env.api.mem_release(create_page(env)));
}

inline void plain_allocation_works(Env& env) {
  CUdeviceptr at = 0;
  CONTRACT_OK(env.api.mem_alloc(&at, 1000));
  CONTRACT_CHECK(is_aligned(at, 256));
  const Stream stream(env);
  CONTRACT_OK(env.api.memset_d8_async(at, 1, 1000, stream));
  CONTRACT_OK(env.api.stream_synchronize(stream));
  const unsigned word = read_word(env, at + 996);
  CONTRACT_OK(env.api.mem_free(at));
  CONTRACT_CHECK(word == 0x01010101);
}

inline void plain_allocation_takes_whole_pages(Env& env) {
  const std::size_t before = free_bytes(env);
  CUdeviceptr at = 0;
  CONTRACT_OK(env.api.mem_alloc(&at, 5 * kMiB));
  const std::size_t during = free_bytes(env);
  CONTRACT_OK(env.api.mem_free(at));
  CONTRACT_CHECK(during == before - 6 * kMiB);
  CONTRACT_CHECK(free_bytes(env) == before);
}

inline void copy_stays_inside_a_plain_allocation(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  CUdeviceptr at = 0;
  CONTRACT_OK(env.api.mem_alloc(&at, 1000));
  const CUresult inside = env.api.memcpy_dtod_async(at, memory.base(), 1000, stream);
  const CUresult outside = env.api.memcpy_dtod_async(at, memory.base(), 1024, stream);
  const CUresult interior = env.api.mem_free(at + 512);
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_OK(env.api.mem_free(at));
  CONTRACT_OK(inside);
  CONTRACT_RESULT(outside, CUDA_ERROR_INVALID_VALUE);
  CONTRACT_RESULT(interior, CUDA_ERROR_INVALID_VALUE);
  CONTRACT_RESULT(env.api.mem_free(at), CUDA_ERROR_INVALID_VALUE);
}

inline void bad_handles_are_refused(Env& env) {
  const CUmemGenericAllocationHandle handle = create_page(env);
  CONTRACT_OK(env.api.mem_release(handle));
  CONTRACT_RESULT(env.api.mem_free(0x1234), CUDA_ERROR_INVALID_VALUE);
  CONTRACT_REFUSED(env.api.mem_address_free(0x1234000, kPage));
}

inline void memory_needs_a_context(Env& env) {
  CONTRACT_OK(env.api.ctx_set_current(nullptr));
  CUdeviceptr at = 0;
  const CUresult result = env.api.mem_alloc(&at, kPage);
  CONTRACT_OK(env.api.ctx_set_current(env.context));
  CONTRACT_RESULT(result, CUDA_ERROR_INVALID_CONTEXT);
}

// Opens the gate once the call waits for it. Where the driver cannot tell, it opens after `delay`;
// if that was before the call (`early`), the caller tries again with a longer delay.
inline bool free_waits_for_gate(Env& env, std::chrono::milliseconds delay, bool& early) {
  const Stream busy(env);
  CUdeviceptr at = 0;
  CONTRACT_OK(env.api.mem_alloc(&at, kPage));
  Gate gate(env, busy);
  std::atomic<bool> returned{false};
  std::thread opener([&] {
    if (env.waiting_threads == nullptr) {
      std::this_thread::sleep_for(delay);
    }
    while (env.waiting_threads != nullptr && env.waiting_threads() == 0 && !returned) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    gate.open();
  });
  early = gate.is_open();
  const CUresult result = env.api.mem_free(at);
  const bool waited = gate.is_open();
  returned = true;
  opener.join();
  CONTRACT_OK(result);
  return waited;
}

inline void plain_free_waits_for_running_work(Env& env) {
  env.require_queued_work();
  bool early = true;
  bool waited = false;
  for (std::chrono::milliseconds delay{30}; early; delay *= 2) {
    waited = free_waits_for_gate(env, delay, early);
  }
  CONTRACT_CHECK(waited);
}

inline void unmapping_under_queued_work_is_illegal(Env& env) {
  if (!env.simulated) {
    throw Skipped("it would end the context of all cases");
  }
  env.require_queued_work();
  const Reservation range(env, kPage);
  const Stream stream(env);
  const CUmemGenericAllocationHandle handle = create_page(env);
  map_page(env, range.base(), handle);
  CONTRACT_OK(env.api.mem_release(handle));
  {
    Gate gate(env, stream);
    CONTRACT_OK(env.api.memset_d8_async(range.base(), 1, 1, stream));
    CONTRACT_OK(env.api.mem_unmap(range.base(), kPage));
  }
  CONTRACT_RESULT(env.api.stream_synchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
  CONTRACT_RESULT(env.api.ctx_synchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  std::size_t free = 0;
  std::size_t total = 0;
  CONTRACT_RESULT(env.api.mem_get_info(&free, &total), CUDA_ERROR_ILLEGAL_ADDRESS);
  // Virtual memory can still be managed.
  CONTRACT_OK(env.api.mem_release(create_page(env)));
}

}  // namespace allocation_cases

inline std::vector<Case> allocation_case_list() {
  using namespace allocation_cases;
  return {
      {"allocation.sizes_must_be_whole_pages", sizes_must_be_whole_pages},
      {"allocation.out_of_memory_is_a_value", out_of_memory_is_a_value},
      {"allocation.full_device_recovers", full_device_recovers},
      {"allocation.plain_allocation_works", plain_allocation_works},
      {"allocation.plain_allocation_takes_whole_pages", plain_allocation_takes_whole_pages},
      {"allocation.copy_stays_inside_a_plain_allocation", copy_stays_inside_a_plain_allocation},
      {"allocation.bad_handles_are_refused", bad_handles_are_refused},
      {"allocation.memory_needs_a_context", memory_needs_a_context},
      {"allocation.plain_free_waits_for_running_work", plain_free_waits_for_running_work},
      {"allocation.unmapping_under_queued_work_is_illegal", unmapping_under_queued_work_is_illegal},
  };
}

}  // namespace ferro::contract
