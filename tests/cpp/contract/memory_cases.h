// Contract cases: virtual memory.
#pragma once

#include "contract/contract.h"

namespace ferro::contract {
namespace memory_cases {

inline void granularity_is_2_mib(Env& env) {
  const CUmemAllocationProp properties = page_properties(env);
  for (const auto option :
       {CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED}) {
    std::size_t granularity = 0;
    CONTRACT_OK(env.api.mem_get_granularity(&granularity, &properties, option));
    CONTRACT_CHECK(granularity == kPage);
  }
}

inline void addresses_cost_no_memory(Env& env) {
  const std::size_t before = free_bytes(env);
  const Reservation range(env, std::size_t{1} << 40);
  CONTRACT_CHECK(is_aligned(range.base(), kPage));
  CONTRACT_CHECK(free_bytes(env) == before);
}

inline void reservation_honours_alignment(Env& env) {
  CUdeviceptr base = 0;
  constexpr std::size_t kAlignment = kGiB;
  CONTRACT_OK(env.api.mem_address_reserve(&base, kPage, kAlignment, 0, 0));
  const bool aligned = is_aligned(base, kAlignment);
  CONTRACT_OK(env.api.mem_address_free(base, kPage));
  CONTRACT_CHECK(aligned);
}

inline void free_addresses_are_had_by_wish_and_others_are_not(Env& env) {
  CUdeviceptr gone = 0;
  constexpr std::size_t kAlignment = std::size_t{64} << 20;
  CONTRACT_OK(env.api.mem_address_reserve(&gone, kAlignment, kAlignment, 0, 0));
  CONTRACT_OK(env.api.mem_address_free(gone, kAlignment));
  CUdeviceptr again = 0;
  CONTRACT_OK(env.api.mem_address_reserve(&again, kAlignment, kAlignment, gone, 0));
  CUdeviceptr elsewhere = 0;
  CONTRACT_OK(env.api.mem_address_reserve(&elsewhere, kAlignment, kAlignment, gone, 0));
  CONTRACT_OK(env.api.mem_address_free(elsewhere, kAlignment));
  CONTRACT_OK(env.api.mem_address_free(again, kAlignment));
  CONTRACT_CHECK(again == gone);
  CONTRACT_CHECK(elsewhere != gone && is_aligned(elsewhere, kAlignment));
}

inline void mapped_memory_keeps_what_is_written(Env& env) {
  const Memory memory(env, 2);
  const Stream stream(env);
  HostWords words(env, 4);
  words[0] = 11;
  words[1] = 22;
  // Across the border of two handles.
  const CUdeviceptr border = memory.at(1) - sizeof(unsigned);
  CONTRACT_OK(env.api.memcpy_htod_async(border, words.data(), 8, stream));
  CONTRACT_OK(env.api.memcpy_dtoh_async(words.data() + 2, border, 8, stream));
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(words[2] == 11 && words[3] == 22);
}

inline void memset_fills_bytes_and_words(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  CONTRACT_OK(env.api.memset_d32_async(memory.base(), 0x01020304, kPage / 4, stream));
  CONTRACT_OK(env.api.memset_d8_async(memory.base() + 2, 0xff, 2, stream));
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(read_word(env, memory.base()) == 0xffff0304);
  CONTRACT_CHECK(read_word(env, memory.base() + kPage - 4) == 0x01020304);
  // Overwrites everything with zeros.
  CONTRACT_OK(env.api.memset_d8_async(memory.base(), 0, kPage, stream));
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(read_word(env, memory.base() + kPage - 4) == 0);
}

inline void value_of_64_bits_is_written_in_order(Env& env) {
  const Memory memory(env);
  const Stream stream(env);
  HostWords words(env, 4);
  fill_words(env, memory.base(), 1, 4, stream);
  CONTRACT_OK(env.api.stream_write_value64(stream, memory.at(0) + 8, 0x0000000300000002, 0));
  CONTRACT_OK(env.api.memcpy_dtoh_async(words.data(), memory.base(), 16, stream));
  CONTRACT_OK(env.api.stream_write_value64(stream, memory.at(0) + 8, 9, 0));
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(words[0] == 1 && words[1] == 1 && words[2] == 2 && words[3] == 3);
  CONTRACT_RESULT(env.api.stream_write_value64(stream, memory.base() + 4, 9, 0),
                  CUDA_ERROR_INVALID_VALUE);
}

inline void copies_between_device_addresses(Env& env) {
  const Memory memory(env, 2);
  const Stream stream(env);
  fill_words(env, memory.at(0), 7, kPage / 4, stream);
  CONTRACT_OK(env.api.memcpy_dtod_async(memory.at(1), memory.at(0), kPage, stream));
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(read_word(env, memory.at(1)) == 7);
  CONTRACT_CHECK(read_word(env, memory.at(1) + kPage - 4) == 7);
}

inline void handle_is_mapped_whole(Env& env) {
  const Reservation range(env, 4 * kPage);
  const CUmemGenericAllocationHandle handle = create_page(env, 2 * kPage);
  const CUresult part = env.api.mem_map(range.base(), kPage, 0, handle, 0);
  const CUresult offset = env.api.mem_map(range.base(), kPage, kPage, handle, 0);
  CONTRACT_OK(env.api.mem_release(handle));
  CONTRACT_RESULT(part, CUDA_ERROR_NOT_SUPPORTED);
  CONTRACT_RESULT(offset, CUDA_ERROR_NOT_SUPPORTED);
}

inline void occupied_addresses_are_refused(Env& env) {
  const Memory memory(env);
  const CUmemGenericAllocationHandle handle = create_page(env);
  const CUresult result = env.api.mem_map(memory.base(), kPage, 0, handle, 0);
  CONTRACT_OK(env.api.mem_release(handle));
  CONTRACT_REFUSED(result);
}

inline void unreserved_addresses_are_refused(Env& env) {
  CUdeviceptr gone = 0;
  CONTRACT_OK(env.api.mem_address_reserve(&gone, kPage, 0, 0, 0));
  CONTRACT_OK(env.api.mem_address_free(gone, kPage));
  const CUmemGenericAllocationHandle handle = create_page(env);
  const CUresult result = env.api.mem_map(gone, kPage, 0, handle, 0);
  CONTRACT_OK(env.api.mem_release(handle));
  CONTRACT_REFUSED(result);
}

inline void alias_shows_the_same_bytes(Env& env) {
  const Reservation range(env, 2 * kPage);
  const CUdeviceptr first = range.base();
  const CUdeviceptr second = range.base() + kPage;
  const CUmemGenericAllocationHandle handle = create_page(env);
  map_page(env, first, handle);
  map_page(env, second, handle);
  CONTRACT_OK(env.api.mem_release(handle));
  {
    const Stream stream(env);
    fill_words(env, first, 41, kPage / 4, stream);
    CONTRACT_OK(env.api.stream_synchronize(stream));
    CONTRACT_CHECK(read_word(env, second + 4096) == 41);
    fill_words(env, second, 42, 1, stream);
    CONTRACT_OK(env.api.stream_synchronize(stream));
    CONTRACT_CHECK(read_word(env, first) == 42);
  }
  // The page stays behind the other address.
  CONTRACT_OK(env.api.mem_unmap(first, kPage));
  const unsigned left = read_word(env, second);
  CONTRACT_OK(env.api.mem_unmap(second, kPage));
  CONTRACT_CHECK(left == 42);
}

inline void page_moves_with_its_contents(Env& env) {
  const Reservation range(env, 2 * kPage);
  const CUmemGenericAllocationHandle handle = create_page(env);
  map_page(env, range.base(), handle);
  {
    const Stream stream(env);
    fill_words(env, range.base(), 5, kPage / 4, stream);
    CONTRACT_OK(env.api.stream_synchronize(stream));
  }
  CONTRACT_OK(env.api.mem_unmap(range.base(), kPage));
  map_page(env, range.base() + kPage, handle);
  const unsigned word = read_word(env, range.base() + kPage);
  CONTRACT_OK(env.api.mem_unmap(range.base() + kPage, kPage));
  CONTRACT_OK(env.api.mem_release(handle));
  CONTRACT_CHECK(word == 5);
}

inline void small_handles_take_the_place_of_a_large_one(Env& env) {
  const Reservation range(env, 4 * kPage);
  const Reservation aside(env, kPage);
  const CUdeviceptr live = range.base() + 2 * kPage;
  const CUmemGenericAllocationHandle large = create_page(env, 4 * kPage);
  map_page(env, range.base(), large, 4 * kPage);
  fill_words(env, live, 42, kPage / 4, nullptr);
  const CUmemGenericAllocationHandle small = create_page(env);
  map_page(env, aside.base(), small);
  CONTRACT_OK(env.api.memcpy_dtod_async(aside.base(), live, kPage, nullptr));
  CONTRACT_OK(env.api.ctx_synchronize());
  CONTRACT_OK(env.api.mem_unmap(aside.base(), kPage));
  CONTRACT_OK(env.api.mem_unmap(range.base(), 4 * kPage));
  map_page(env, live, small);
  CONTRACT_OK(env.api.mem_release(large));
  const unsigned first = read_word(env, live);
  const unsigned last = read_word(env, live + kPage - 4);
  CONTRACT_OK(env.api.mem_unmap(live, kPage));
  CONTRACT_OK(env.api.mem_release(small));
  CONTRACT_CHECK(first == 42 && last == 42);
}

inline void released_page_lives_until_unmapped(Env& env) {
  const Reservation range(env, kPage);
  const std::size_t before = free_bytes(env);
  const CUmemGenericAllocationHandle handle = create_page(env);
  map_page(env, range.base(), handle);
  CONTRACT_OK(env.api.mem_release(handle));
  CONTRACT_CHECK(free_bytes(env) == before - kPage);
  {
    const Stream stream(env);
    fill_words(env, range.base(), 9, 1, stream);
    CONTRACT_OK(env.api.stream_synchronize(stream));
  }
  CONTRACT_CHECK(read_word(env, range.base()) == 9);
  CONTRACT_OK(env.api.mem_unmap(range.base(), kPage));
  CONTRACT_CHECK(free_bytes(env) == before);
}

inline void pages_cost_exactly_their_bytes(Env& env) {
  constexpr std::size_t kPages = 64;
  const std::size_t before = free_bytes(env);
  std::vector<CUmemGenericAllocationHandle> handles;
  for (std::size_t i = 0; i < kPages; ++i) {
    handles.push_back(create_page(env));
  }
  const std::size_t during = free_bytes(env);
  for (const auto handle : handles) {
    CONTRACT_OK(env.api.mem_release(handle));
  }
  CONTRACT_CHECK(during == before - kPages * kPage);
  CONTRACT_CHECK(free_bytes(env) == before);
}

inline void one_call_covers_many_handles(Env& env) {
  constexpr std::size_t kPages = 8;
  const Reservation range(env, kPages * kPage);
  for (std::size_t i = 0; i < kPages; ++i) {
    const CUmemGenericAllocationHandle handle = create_page(env);
    const CUresult mapped = env.api.mem_map(range.base() + i * kPage, kPage, 0, handle, 0);
    CONTRACT_OK(env.api.mem_release(handle));
    CONTRACT_OK(mapped);
  }
  CONTRACT_OK(set_access(env, range.base(), kPages * kPage));
  CUmemLocation location = {};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = env.device;
  for (std::size_t i = 0; i < kPages; ++i) {
    unsigned long long flags = 0;
    CONTRACT_OK(env.api.mem_get_access(&flags, &location, range.base() + i * kPage));
    CONTRACT_CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
  CONTRACT_OK(env.api.mem_unmap(range.base(), kPages * kPage));
}

inline void access_to_unmapped_addresses_is_refused(Env& env) {
  const Reservation range(env, kPage);
  CONTRACT_REFUSED(set_access(env, range.base(), kPage));
  // Unmapping succeeds where nothing is mapped.
  CONTRACT_OK(env.api.mem_unmap(range.base(), kPage));
}

inline void mapping_is_never_cut(Env& env) {
  const Reservation range(env, 2 * kPage);
  const CUmemGenericAllocationHandle handle = create_page(env, 2 * kPage);
  CONTRACT_OK(env.api.mem_map(range.base(), 2 * kPage, 0, handle, 0));
  CONTRACT_OK(env.api.mem_release(handle));
  const CUresult access = set_access(env, range.base(), kPage);
  const CUresult head = env.api.mem_unmap(range.base(), kPage);
  const CUresult tail = env.api.mem_unmap(range.base() + kPage, kPage);
  CONTRACT_OK(env.api.mem_unmap(range.base(), 2 * kPage));
  CONTRACT_RESULT(access, CUDA_ERROR_INVALID_VALUE);
  CONTRACT_RESULT(head, CUDA_ERROR_INVALID_VALUE);
  CONTRACT_RESULT(tail, CUDA_ERROR_INVALID_VALUE);
}

inline void use_needs_access(Env& env) {
  const Reservation range(env, kPage);
  const Memory memory(env);
  const Stream stream(env);
  const CUmemGenericAllocationHandle handle = create_page(env);
  CONTRACT_OK(env.api.mem_map(range.base(), kPage, 0, handle, 0));
  CONTRACT_OK(env.api.mem_release(handle));
  const CUresult copy = env.api.memcpy_dtod_async(range.base(), memory.base(), 64, stream);
  const CUresult fill = env.api.memset_d8_async(range.base(), 0, 64, stream);
  CONTRACT_OK(env.api.mem_unmap(range.base(), kPage));
  CONTRACT_RESULT(copy, CUDA_ERROR_INVALID_VALUE);
  CONTRACT_RESULT(fill, CUDA_ERROR_INVALID_VALUE);
}

inline void unmapped_addresses_are_refused_at_the_call(Env& env) {
  const Reservation range(env, kPage);
  const Stream stream(env);
  HostWords words(env, 1);
  CONTRACT_RESULT(env.api.memcpy_htod_async(range.base(), words.data(), 4, stream),
                  CUDA_ERROR_INVALID_VALUE);
  CONTRACT_RESULT(env.api.memset_d8_async(range.base(), 0, 64, stream), CUDA_ERROR_INVALID_VALUE);
  // The refusal is not sticky.
  CONTRACT_OK(env.api.stream_synchronize(stream));
}

inline void mapping_does_not_wait(Env& env) {
  const Stream busy(env);
  const Reservation range(env, kPage);
  Gate gate(env, busy);
  const CUmemGenericAllocationHandle handle = create_page(env);
  map_page(env, range.base(), handle);
  const bool still_busy = env.api.stream_query(busy) == CUDA_ERROR_NOT_READY;
  CONTRACT_OK(env.api.mem_unmap(range.base(), kPage));
  CONTRACT_OK(env.api.mem_release(handle));
  CONTRACT_CHECK(still_busy && !gate.is_open());
}

inline void mapped_addresses_stay_reserved(Env& env) {
  CUdeviceptr base = 0;
  CONTRACT_OK(env.api.mem_address_reserve(&base, kPage, 0, 0, 0));
  const CUmemGenericAllocationHandle handle = create_page(env);
  CONTRACT_OK(env.api.mem_map(base, kPage, 0, handle, 0));
  CONTRACT_OK(env.api.mem_release(handle));
  const CUresult early = env.api.mem_address_free(base, kPage);
  CONTRACT_OK(env.api.mem_unmap(base, kPage));
  CONTRACT_OK(env.api.mem_address_free(base, kPage));
  CONTRACT_RESULT(early, CUDA_ERROR_INVALID_VALUE);
}

inline void gaps_are_ignored_inside_a_range(Env& env) {
  const Reservation range(env, 3 * kPage);
  for (const std::size_t page : {0, 2}) {
    const CUmemGenericAllocationHandle handle = create_page(env);
    CONTRACT_OK(env.api.mem_map(range.base() + page * kPage, kPage, 0, handle, 0));
    CONTRACT_OK(env.api.mem_release(handle));
  }
  const CUresult around_gap = set_access(env, range.base(), 3 * kPage);
  const CUresult ends_in_gap = set_access(env, range.base(), 2 * kPage);
  const CUresult begins_in_gap = set_access(env, range.base() + kPage, 2 * kPage);
  CONTRACT_OK(env.api.mem_unmap(range.base(), 3 * kPage));
  CONTRACT_OK(around_gap);
  CONTRACT_RESULT(ends_in_gap, CUDA_ERROR_INVALID_VALUE);
  CONTRACT_RESULT(begins_in_gap, CUDA_ERROR_INVALID_VALUE);
}

}  // namespace memory_cases

inline std::vector<Case> memory_case_list() {
  using namespace memory_cases;
  return {
      {"memory.granularity_is_2_mib", granularity_is_2_mib},
      {"memory.addresses_cost_no_memory", addresses_cost_no_memory},
      {"memory.reservation_honours_alignment", reservation_honours_alignment},
      {"memory.mapped_memory_keeps_what_is_written", mapped_memory_keeps_what_is_written},
      {"memory.memset_fills_bytes_and_words", memset_fills_bytes_and_words},
      {"memory.value_of_64_bits_is_written_in_order", value_of_64_bits_is_written_in_order},
      {"memory.copies_between_device_addresses", copies_between_device_addresses},
      {"memory.handle_is_mapped_whole", handle_is_mapped_whole},
      {"memory.occupied_addresses_are_refused", occupied_addresses_are_refused},
      {"memory.free_addresses_are_had_by_wish_and_others_are_not",
       free_addresses_are_had_by_wish_and_others_are_not},
      {"memory.unreserved_addresses_are_refused", unreserved_addresses_are_refused},
      {"memory.alias_shows_the_same_bytes", alias_shows_the_same_bytes},
      {"memory.page_moves_with_its_contents", page_moves_with_its_contents},
      {"memory.small_handles_take_the_place_of_a_large_one",
       small_handles_take_the_place_of_a_large_one},
      {"memory.released_page_lives_until_unmapped", released_page_lives_until_unmapped},
      {"memory.pages_cost_exactly_their_bytes", pages_cost_exactly_their_bytes},
      {"memory.one_call_covers_many_handles", one_call_covers_many_handles},
      {"memory.access_to_unmapped_addresses_is_refused", access_to_unmapped_addresses_is_refused},
      {"memory.unmapped_addresses_are_refused_at_the_call",
       unmapped_addresses_are_refused_at_the_call},
      {"memory.mapping_does_not_wait", mapping_does_not_wait},
      {"memory.mapping_is_never_cut", mapping_is_never_cut},
      {"memory.use_needs_access", use_needs_access},
      {"memory.mapped_addresses_stay_reserved", mapped_addresses_stay_reserved},
      {"memory.gaps_are_ignored_inside_a_range", gaps_are_ignored_inside_a_range},
  };
}

}  // namespace ferro::contract
