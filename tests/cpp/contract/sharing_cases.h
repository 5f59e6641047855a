// Contract cases: memory and events shared with other processes.
#pragma once

#include "contract/peer_process.h"

#include <cstdint>

namespace ferro::contract {
namespace sharing_cases {

// A page that may be exported, until the scope ends.
class ExportablePage {
 public:
  explicit ExportablePage(const Env& env, std::size_t bytes = kPage) : env_(env) {
    CUmemAllocationProp properties = page_properties(env);
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CONTRACT_OK(env.api.mem_create(&handle_, bytes, &properties, 0));
  }
  ~ExportablePage() { release(); }
  ExportablePage(const ExportablePage&) = delete;
  ExportablePage& operator=(const ExportablePage&) = delete;
  CUmemGenericAllocationHandle handle() const { return handle_; }
  void release() {
    if (handle_ != 0) {
      env_.api.mem_release(std::exchange(handle_, 0));
    }
  }

 private:
  const Env& env_;
  CUmemGenericAllocationHandle handle_ = 0;
};

class Descriptor {
 public:
  Descriptor(const Env& env, CUmemGenericAllocationHandle handle) : env_(env) {
    CONTRACT_OK(env_.api.mem_export(&value_, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  }
  ~Descriptor() { close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }
  void* as_argument() const { return reinterpret_cast<void*>(std::intptr_t{value_}); }

 private:
  const Env& env_;
  int value_ = -1;
};

inline CUmemGenericAllocationHandle import_page(const Env& env, const Descriptor& descriptor) {
  CUmemGenericAllocationHandle handle = 0;
  CONTRACT_OK(env.api.mem_import(&handle, descriptor.as_argument(),
                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return handle;
}

inline void exportable_pages_cost_nothing_more(Env& env) {
  const std::size_t before = free_bytes(env);
  const ExportablePage page(env);
  CONTRACT_CHECK(free_bytes(env) + kPage == before);
}

inline void export_needs_the_handle_type(Env& env) {
  const CUmemGenericAllocationHandle handle = create_page(env);
  int descriptor = -1;
  const CUresult result =
      env.api.mem_export(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  CONTRACT_OK(env.api.mem_release(handle));
  CONTRACT_REFUSED(result);
}

inline void foreign_descriptors_are_refused(Env& env) {
  const int file = open("/dev/null", O_RDWR | O_CLOEXEC);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = env.api.mem_import(&handle, reinterpret_cast<void*>(std::intptr_t{file}),
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  close(file);
  CONTRACT_REFUSED(result);
}

// The import is an alias, keeps the memory after the exporter has released it, and can be imported
// again.
inline void import_outlives_its_exporter(Env& env) {
  const Reservation range(env, 2 * kPage);
  const CUdeviceptr first = range.base();
  const CUdeviceptr second = range.base() + kPage;
  ExportablePage page(env);
  map_page(env, first, page.handle());
  {
    const Stream stream(env);
    fill_words(env, first, 41, kPage / 4, stream);
    CONTRACT_OK(env.api.stream_synchronize(stream));
  }
  const Descriptor descriptor(env, page.handle());
  const CUmemGenericAllocationHandle imported = import_page(env, descriptor);
  const CUmemGenericAllocationHandle again = import_page(env, descriptor);
  CONTRACT_OK(env.api.mem_release(again));
  map_page(env, second, imported);
  CONTRACT_OK(env.api.mem_release(imported));
  const unsigned through_import = read_word(env, second + 4096);
  {
    const Stream stream(env);
    fill_words(env, second, 42, 1, stream);
    CONTRACT_OK(env.api.stream_synchronize(stream));
  }
  const unsigned through_page = read_word(env, first);
  CONTRACT_OK(env.api.mem_unmap(first, kPage));
  page.release();
  const unsigned left = read_word(env, second);
  CONTRACT_OK(env.api.mem_unmap(second, kPage));
  CONTRACT_CHECK(through_import == 41);
  CONTRACT_CHECK(through_page == 42);
  CONTRACT_CHECK(left == 42);
}

inline void import_is_mapped_whole(Env& env) {
  const Reservation range(env, 2 * kPage);
  const ExportablePage page(env, 2 * kPage);
  const Descriptor descriptor(env, page.handle());
  const CUmemGenericAllocationHandle imported = import_page(env, descriptor);
  const CUresult part = env.api.mem_map(range.base(), kPage, 0, imported, 0);
  const CUresult whole = env.api.mem_map(range.base(), 2 * kPage, 0, imported, 0);
  CONTRACT_OK(env.api.mem_release(imported));
  if (whole == CUDA_SUCCESS) {
    CONTRACT_OK(env.api.mem_unmap(range.base(), 2 * kPage));
  }
  CONTRACT_RESULT(part, CUDA_ERROR_NOT_SUPPORTED);
  CONTRACT_OK(whole);
}

// Another process reads and writes the same bytes, also after this one has released them.
inline void pages_are_shared_between_processes(Env& env) {
  const Reservation range(env, 2 * kPage);
  ExportablePage page(env, 2 * kPage);
  map_page(env, range.base(), page.handle(), 2 * kPage);
  {
    const Stream stream(env);
    fill_words(env, range.base(), 7, 1, stream);
    CONTRACT_OK(env.api.stream_synchronize(stream));
  }
  int seen = -1;
  int left = -1;
  unsigned word = 0;
  try {
    const Descriptor descriptor(env, page.handle());
    const std::vector<std::string> arguments = {"pages", std::to_string(descriptor.value()),
                                                std::to_string(2 * kPage)};
    const auto with = [&](const char* expected) {
      std::vector<std::string> all = arguments;
      all.emplace_back(expected);
      return all;
    };
    PeerProcess first(env, with("7"), descriptor.value());
    first.is_open();
    seen = first.finish();
    word = read_word(env, range.base());
    PeerProcess second(env, with("8"), descriptor.value());
    second.is_open();
    CONTRACT_OK(env.api.mem_unmap(range.base(), 2 * kPage));
    page.release();
    left = second.finish();
  } catch (...) {
    env.api.mem_unmap(range.base(), 2 * kPage);
    throw;
  }
  CONTRACT_CHECK(seen == 0 && word == 8);
  CONTRACT_CHECK(left == 0);
}

// cuMemAlloc's memory on this device.
class Allocation {
 public:
  Allocation(const Env& env, std::size_t bytes) : env_(env) {
    CONTRACT_OK(env.api.mem_alloc(&at_, bytes));
  }
  ~Allocation() { env_.api.mem_free(at_); }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  CUdeviceptr at() const { return at_; }

 private:
  const Env& env_;
  CUdeviceptr at_ = 0;
};

inline void memory_handles_are_for_other_processes(Env& env) {
  const Allocation memory(env, kPage);
  CUipcMemHandle handle{};
  CONTRACT_OK(env.api.ipc_get_mem_handle(&handle, memory.at()));
  CUdeviceptr opened = 0;
  CONTRACT_RESULT(env.api.ipc_open_mem_handle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
                  CUDA_ERROR_INVALID_CONTEXT);
}

inline void mapped_pages_have_no_memory_handle(Env& env) {
  const Memory memory(env);
  CUipcMemHandle handle{};
  CONTRACT_RESULT(env.api.ipc_get_mem_handle(&handle, memory.base()), CUDA_ERROR_INVALID_VALUE);
}

inline void memory_is_shared_by_handle(Env& env) {
  // The second of two small allocations, which share their pages.
  const Allocation neighbour(env, 4096);
  const Allocation memory(env, 4096);
  {
    const Stream stream(env);
    fill_words(env, neighbour.at(), 100, 1, stream);
    fill_words(env, memory.at(), 7, 1, stream);
    CONTRACT_OK(env.api.stream_synchronize(stream));
  }
  CUipcMemHandle handle{};
  CONTRACT_OK(env.api.ipc_get_mem_handle(&handle, memory.at()));
  PeerProcess peer(env, {"memory", to_hex(&handle, sizeof(handle)), "7"});
  CONTRACT_CHECK(peer.is_open());
  CONTRACT_CHECK(peer.finish() == 0);
  CONTRACT_CHECK(read_word(env, memory.at()) == 8);
  CONTRACT_CHECK(read_word(env, neighbour.at()) == 100);
}

constexpr unsigned kSharedEvent = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

inline void event_handles_need_their_flag(Env& env) {
  const Event event(env);
  CUipcEventHandle handle{};
  CONTRACT_REFUSED(env.api.ipc_get_event_handle(&handle, event));
}

// A process that waits for the event sees the work before the event's record.
inline void events_order_work_of_other_processes(Env& env) {
  const Allocation memory(env, kPage);
  const Stream stream(env);
  const Event event(env, kSharedEvent);
  CUipcMemHandle memory_handle{};
  CUipcEventHandle event_handle{};
  CONTRACT_OK(env.api.ipc_get_mem_handle(&memory_handle, memory.at()));
  fill_words(env, memory.at(), 5, kPage / 4, stream);
  CONTRACT_OK(env.api.event_record(event, stream));
  CONTRACT_OK(env.api.ipc_get_event_handle(&event_handle, event));
  PeerProcess peer(env, {"memory", to_hex(&memory_handle, sizeof(memory_handle)), "6",
                         to_hex(&event_handle, sizeof(event_handle))});
  CONTRACT_CHECK(peer.is_open());
  // A later version of an event that the other process knows already.
  fill_words(env, memory.at(), 6, kPage / 4, stream);
  CONTRACT_OK(env.api.event_record(event, stream));
  CONTRACT_CHECK(peer.finish() == 0);
  CONTRACT_OK(env.api.stream_synchronize(stream));
  CONTRACT_CHECK(read_word(env, memory.at()) == 7);
}

}  // namespace sharing_cases

inline std::vector<Case> sharing_case_list() {
#define CONTRACT_CASE(name) \
  { "sharing." #name, sharing_cases::name }
  return {
      CONTRACT_CASE(exportable_pages_cost_nothing_more),
      CONTRACT_CASE(export_needs_the_handle_type),
      CONTRACT_CASE(foreign_descriptors_are_refused),
      CONTRACT_CASE(import_outlives_its_exporter),
      CONTRACT_CASE(import_is_mapped_whole),
      CONTRACT_CASE(pages_are_shared_between_processes),
      CONTRACT_CASE(memory_handles_are_for_other_processes),
      CONTRACT_CASE(mapped_pages_have_no_memory_handle),
      CONTRACT_CASE(memory_is_shared_by_handle),
      CONTRACT_CASE(event_handles_need_their_flag),
      CONTRACT_CASE(events_order_work_of_other_processes),
  };
#undef CONTRACT_CASE
}

}  // namespace ferro::contract
