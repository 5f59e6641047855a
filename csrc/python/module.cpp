// The Python module ferro_alloc._C: conversions only.
#include "ferro/adapter/allocator/device_view.h"
#include "ferro/adapter/history/tags.h"
#include "ferro/adapter/switching/install.h"
#include "ferro/adapter/torch/convert.h"
#include "ferro/adapter/torch/driver_refusals.h"
#include "ferro/adapter/torch/interpreter_lock.h"
#include "ferro/adapter/torch/torch_compat.h"
#include "ferro/driver/cuda_api.h"
#include "python/call_sites.h"
#include "python/graph_debug.h"
#include "python/graphs.h"
#include "python/peak.h"
#include "python/tags.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>

#include <array>
#include <cstdint>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace {

std::string driver_problem() { return ferro::load_cuda_api().why; }

// Works also in threads that Python does not know.
ferro::InterpreterLock interpreter_lock() {
  return {[]() -> void* { return PyGILState_Check() == 1 ? PyEval_SaveThread() : nullptr; },
          [](void* state) { PyEval_RestoreThread(static_cast<PyThreadState*>(state)); }};
}

ferro::Layout to_layout(const std::string& name) {
  return name == "segments" ? ferro::Layout::kSegments : ferro::Layout::kPages;
}

std::size_t allocation_size(std::size_t size, const std::string& layout,
                            std::size_t page_size_bytes) {
  return ferro::allocation_size(size, to_layout(layout), page_size_bytes);
}

void install(std::size_t page_size_bytes, std::size_t memory_limit_bytes,
             std::optional<int> in_flight_percent, std::size_t headroom_bytes,
             std::size_t idle_bytes, const std::string& layout, const std::string& graph_layout,
             const std::string& graph_order) {
  ferro::Settings config;
  config.headroom = headroom_bytes;
  config.idle_bytes = idle_bytes;
  config.layout = to_layout(layout);
  config.graph_layout = to_layout(graph_layout);
  config.graph_order =
      graph_order == "any" ? ferro::GraphOrder::kAny : ferro::GraphOrder::kCaptured;
  config.page_bytes = page_size_bytes;
  if (memory_limit_bytes != 0) {
    config.memory_limit = memory_limit_bytes;
  }
  config.in_flight_share = in_flight_percent ? *in_flight_percent / 100.0 : -1.0;
  // The current allocator may call Python while it empties its cache.
  const py::gil_scoped_release release;
  ferro::install(config);
}

void uninstall() {
  const py::gil_scoped_release release;
  ferro::uninstall();
}

// Null if ferro_alloc does not serve the device.
ferro::DeviceMemory* find_core(int device) {
  const ferro::CudaAllocator* allocator = ferro::installed_allocator();
  return allocator != nullptr ? allocator->core_of(device) : nullptr;
}

ferro::DeviceMemory& core_of(int device) {
  ferro::DeviceMemory* core = find_core(device);
  if (core == nullptr) {
    throw std::runtime_error("ferro_alloc does not serve device " + std::to_string(device) +
                             ": it is not installed, or CUDA is not initialised");
  }
  return *core;
}

py::dict device_report(int device) {
  ferro::DeviceMemory& core = core_of(device);
  ferro::CudaAllocator& allocator = *ferro::installed_allocator();
  const auto index = static_cast<c10::DeviceIndex>(device);
  const ferro::DeviceCounters counters = core.report().counters();
  py::dict ladder;
  py::dict ladder_ms;
  py::dict ladder_pages;
  for (std::size_t i = 0; i < ferro::kLadderSteps; ++i) {
    const char* step = ferro::name_of(static_cast<ferro::LadderStep>(i));
    ladder[step] = counters.ladder[i];
    ladder_ms[step] = static_cast<double>(counters.ladder_costs[i].nanoseconds) / 1e6;
    ladder_pages[step] = counters.ladder_costs[i].pages;
  }
  py::dict driver_calls;
  ferro::for_each_kind(core.driver().calls(),
                       [&](const char* name, std::uint64_t count) { driver_calls[name] = count; });
  const ferro::PageCounts pages = core.store().counts();
  py::dict report;
  report["layout"] = allocator.has_pages(index) ? "pages" : "segments";
  report["page_bytes"] = core.store().page_bytes();
  report["pages_held"] = pages.held;
  report["pages_idle"] = pages.idle;
  py::dict stranded;
  for (const auto& [handle_pages, bytes] : core.report().stranded()) {
    stranded[py::int_(handle_pages)] = bytes;
  }
  report["stranded"] = stranded;
  const ferro::DeviceMemory::SleepView sleep = core.sleep_view();
  report["asleep_bytes"] = sleep.asleep_bytes;
  report["saved_host_bytes"] = sleep.saved_bytes;
  report["pages_moved"] = core.report().view().pages_moved;
  report["pages_transferred"] = counters.pages_transferred;
  report["unmapped_by_requests"] = counters.unmapped_by_requests;
  report["unmaps_refused"] = counters.unmaps_refused;
  report["ladder"] = ladder;
  report["ladder_ms"] = ladder_ms;
  report["ladder_pages"] = ladder_pages;
  report["driver_calls"] = driver_calls;
  py::dict tags;
  for (const ferro::TagTotal& tag : allocator.tags(index)) {
    tags[py::str(tag.name)] = tag.total.bytes;
  }
  report["tags"] = tags;
  // Of both allocators.
  const auto stats = allocator.getDeviceStats(index);
  const c10::CachingAllocator::Stat& allocated = stats.allocated_bytes[ferro::kAggregate];
  const c10::CachingAllocator::Stat& reserved = stats.reserved_bytes[ferro::kAggregate];
  report["allocated_bytes"] = allocated.current;
  report["peak_allocated_bytes"] = allocated.peak;
  report["reserved_bytes"] = reserved.current;
  report["peak_reserved_bytes"] = reserved.peak;
  return report;
}

bool pin(std::uintptr_t address, std::size_t bytes) {
  const py::gil_scoped_release release;
  ferro::CudaAllocator* ours = ferro::installed_allocator();
  return ours != nullptr && ours->pin(reinterpret_cast<void*>(address), bytes);
}

bool is_asleep(std::uintptr_t address) {
  const ferro::CudaAllocator* ours = ferro::installed_allocator();
  return ours != nullptr && ours->is_asleep(ferro::DevicePtr{address});
}

void unpin(std::uintptr_t address, std::size_t bytes) {
  const py::gil_scoped_release release;
  ferro::installed_allocator()->unpin(reinterpret_cast<void*>(address), bytes);
}

// The result of a sleep or a wake, for _sleep.py.
py::dict to_dict(const ferro::SleepOutcome& outcome) {
  constexpr std::array kResults = {"ok", "busy", "host", "stays", "device"};
  constexpr std::array<const char*, ferro::kStayReasons> kReasons = {"beside", "exported", "pinned",
                                                                     "shared", "refused"};
  py::dict staying;
  for (std::size_t i = 0; i < kReasons.size(); ++i) {
    if (outcome.staying.by_reason[i] != 0) {
      staying[kReasons[i]] = outcome.staying.by_reason[i];
    }
  }
  py::dict result;
  result["result"] = kResults[static_cast<std::size_t>(outcome.result)];
  result["bytes"] = outcome.bytes;
  result["saved_bytes"] = outcome.saved_bytes;
  result["missing_bytes"] = outcome.missing_bytes;
  result["staying"] = staying;
  return result;
}

// `tags`: none for all memory. `except`: tags of memory for which `keep` means its opposite.
py::dict fall_asleep(int device, const std::optional<std::vector<std::string>>& tags, bool keep,
                     const std::vector<std::string>& except, bool strict) {
  using ferro::Sleeper;
  core_of(device);  // throws without an allocator
  ferro::CudaAllocator& ours = *ferro::installed_allocator();
  ferro::SleepOutcome outcome;
  {
    const py::gil_scoped_release release;
    outcome = ours.sleep(static_cast<c10::DeviceIndex>(device), tags ? &*tags : nullptr,
                         keep ? Sleeper::Contents::kKeep : Sleeper::Contents::kDrop, except,
                         strict ? Sleeper::Want::kAll : Sleeper::Want::kWhatCanSleep);
  }
  return to_dict(outcome);
}

py::dict wake_up(int device, const std::optional<std::vector<std::string>>& tags) {
  core_of(device);
  ferro::CudaAllocator& ours = *ferro::installed_allocator();
  ferro::SleepOutcome outcome;
  {
    const py::gil_scoped_release release;
    outcome = ours.wake(static_cast<c10::DeviceIndex>(device), tags ? &*tags : nullptr);
  }
  py::dict result = to_dict(outcome);
  if (outcome.result == ferro::SleepResult::kOutOfMemory) {
    const auto index = static_cast<c10::DeviceIndex>(device);
    result["message"] = ours.message_of_failed_wake(index, outcome.bytes);
  }
  return result;
}

py::dict sleep_view(int device) {
  ferro::DeviceMemory& core = core_of(device);
  const ferro::DeviceMemory::SleepView view = core.sleep_view();
  py::dict numbers;
  numbers["asleep_bytes"] = view.asleep_bytes;
  numbers["saved_bytes"] = view.saved_bytes;
  numbers["host_bytes"] = view.host_bytes;
  numbers["locked_bytes"] = view.locked_bytes;
  numbers["native_bytes"] =
      ferro::installed_allocator()->held_by_previous(static_cast<c10::DeviceIndex>(device));
  return numbers;
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> asleep_pools(int device) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pools;
  for (const auto& [id, bytes] : core_of(device).asleep_pools()) {
    pools.emplace_back(id.graph, id.handle);
  }
  return pools;
}

std::size_t trim_host_memory(int device) {
  ferro::DeviceMemory& core = core_of(device);
  const py::gil_scoped_release release;
  return core.trim_host_memory();
}

py::dict device_view(int device) {
  ferro::DeviceMemory& core = core_of(device);
  const ferro::DeviceView view = core.report().view();
  const auto stats =
      ferro::installed_allocator()->statistics(static_cast<c10::DeviceIndex>(device));
  py::dict numbers;
  // These are of both allocators, the other numbers ours.
  numbers["memory_allocated"] = stats.allocated_bytes[ferro::kAggregate].current;
  numbers["max_memory_allocated"] = stats.allocated_bytes[ferro::kAggregate].peak;
  numbers["memory_reserved"] = stats.reserved_bytes[ferro::kAggregate].current;
  numbers["requested_bytes"] = stats.requested_bytes[ferro::kAggregate].current;
  numbers["blocks"] = stats.allocation[ferro::kAggregate].current;
  numbers["cached_bytes"] =
      view.free_bytes + core.store().counts().idle * core.store().page_bytes();
  numbers["free_blocks"] = view.free_blocks;
  py::dict cache;
  cache["hits"] = view.hits;
  cache["late_hits"] = view.late_hits;
  cache["misses"] = view.misses;
  numbers["cache_stats"] = cache;
  numbers["slowest_miss_ms"] =
      static_cast<double>(core.report().counters().slowest_nanoseconds) / 1e6;
  return numbers;
}

// (address, tag) of each live block that has one.
py::list tagged_blocks(int device) {
  std::vector<std::pair<std::uint64_t, ferro::BlockTag>> found;
  if (ferro::DeviceMemory* core = find_core(device)) {
    core->report().visit_live([&](const ferro::BlockView& block) {
      if (block.tag != 0) {
        found.emplace_back(ferro::address_of(block.ptr), block.tag);
      }
    });
  }
  py::list blocks;
  for (const auto& [address, tag] : found) {
    blocks.append(py::make_tuple(address, ferro::tag_names().name_of(tag)));
  }
  return blocks;
}

void sample_stacks(std::size_t mean_bytes) {
  if (ferro::CudaAllocator* allocator = ferro::installed_allocator()) {
    allocator->sample_stacks(mean_bytes);
  }
}

// The last failure whose message is part of `text`; empty if none is known.
py::dict find_failure(const std::string& text) {
  const ferro::CudaAllocator* allocator = ferro::installed_allocator();
  const std::optional<ferro::Failure> found =
      allocator != nullptr ? allocator->failures().find(text) : std::nullopt;
  if (!found) {
    return {};
  }
  const ferro::OutOfMemoryFacts& facts = found->facts;
  py::list streams;
  for (const ferro::StreamShare& share : facts.streams) {
    streams.append(
        py::make_tuple(static_cast<std::uint64_t>(share.stream), share.held, share.live));
  }
  py::list pools;
  for (const ferro::PoolShare& share : found->pools) {
    pools.append(py::make_tuple(share.name, share.sizes.private_bytes, share.sizes.live_bytes));
  }
  py::list sites;
  for (const ferro::CallSite& site : found->call_sites.largest) {
    sites.append(py::make_tuple(site.line, site.total.bytes, site.total.blocks));
  }
  py::list tags;
  for (const ferro::TagTotal& tag : found->tags) {
    tags.append(py::make_tuple(tag.name, tag.total.bytes, tag.total.blocks));
  }
  py::dict failure;
  failure["device"] = static_cast<int>(facts.device);
  failure["verdict"] = ferro::name_of(ferro::diagnose(facts));
  failure["advice"] = ferro::advice(facts);
  failure["request_bytes"] = facts.request;
  failure["shortfall_bytes"] = ferro::shortfall(facts);
  failure["capacity_bytes"] = facts.capacity;
  failure["device_free_bytes"] = facts.device_free;
  failure["limit_bytes"] = facts.limit;
  failure["reserved_bytes"] = facts.held;
  failure["live_bytes"] = facts.live;
  failure["waiting_bytes"] = facts.pending;
  failure["cached_bytes"] = facts.free_default;
  failure["cached_in_pools_bytes"] = facts.free_private;
  failure["previous_reserved_bytes"] = facts.previous_held;
  failure["previous_live_bytes"] = facts.previous_live;
  failure["asleep_bytes"] = facts.asleep;
  failure["saved_host_bytes"] = facts.saved;
  failure["other_bytes"] = ferro::other_memory(facts);
  failure["streams"] = streams;
  failure["pools"] = pools;
  failure["call_sites"] = sites;
  failure["tags"] = tags;
  return failure;
}

void empty_cache(int device) {
  const py::gil_scoped_release release;
  core_of(device);
  ferro::installed_allocator()->empty_cache_of(static_cast<std::int8_t>(device));
}

void reset_peak(int device) {
  core_of(device);
  ferro::installed_allocator()->resetPeakStats(static_cast<std::int8_t>(device));
}

void reset_slowest_miss(int device) { core_of(device).report().reset_slowest(); }

std::size_t bytes_from_driver(int device, std::size_t size) {
  return ferro::bytes_from_driver(core_of(device), size);
}

void check_invariants(int device) { core_of(device).report().check_invariants(); }

// For tests that put a faulty driver between the allocator and the simulated GPU.
std::uintptr_t driver_table_address() {
  return reinterpret_cast<std::uintptr_t>(ferro::load_cuda_api().api);
}

// Translates refusals of the driver in the functions below. Functions bound by torch's own wrappers
// (graphs.cpp) throw PyTorch's error already.
void translate_refusal(std::exception_ptr error) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const ferro::DriverError& refusal) {
    try {
      ferro::throw_as_torch(refusal);
    } catch (...) {
      torch::translate_exception_to_python(std::current_exception());
    }
  }
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  py::register_local_exception_translator(&translate_refusal);
  ferro::set_interpreter_lock(interpreter_lock());
  ferro::bind_graphs(module);
  ferro::bind_graph_debug(module);
  ferro::bind_call_sites(module);
  ferro::bind_peak(module);
  ferro::bind_tags(module);
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    const py::gil_scoped_release release;
    if (ferro::CudaAllocator* allocator = ferro::installed_allocator(); allocator != nullptr) {
      allocator->stop_status();
    }
  }));
  module.def("install", &install, py::arg("page_size_bytes"), py::arg("memory_limit_bytes"),
             py::arg("in_flight_percent"), py::arg("headroom_bytes"), py::arg("idle_bytes"),
             py::arg("layout"), py::arg("graph_layout"), py::arg("graph_order"));
  module.def("uninstall", &uninstall);
  module.def("is_installed", &ferro::is_installed);
  module.def("is_in_place", &ferro::is_in_place);
  module.def("built_torch_version", [] { return std::string(ferro::kBuiltForTorch); });
  module.def("driver_problem", &driver_problem);
  module.def("is_caching", &ferro::is_caching);
  module.def("find_failure", &find_failure, py::arg("text"));
  module.def("device_report", &device_report, py::arg("device"));
  module.def("sample_stacks", &sample_stacks, py::arg("mean_bytes"));
  module.def("tagged_blocks", &tagged_blocks, py::arg("device"));
  module.def("device_view", &device_view, py::arg("device"));
  module.def("empty_cache", &empty_cache, py::arg("device"));
  module.def("reset_peak", &reset_peak, py::arg("device"));
  module.def("reset_slowest_miss", &reset_slowest_miss, py::arg("device"));
  module.def("round_size", &ferro::round_size, py::arg("size"));
  module.def("allocation_size", &allocation_size, py::arg("size"), py::arg("layout"),
             py::arg("page_size_bytes"));
  module.def("bytes_from_driver", &bytes_from_driver, py::arg("device"), py::arg("size"));
  module.def("pin", &pin, py::arg("address"), py::arg("size"));
  module.def("is_asleep", &is_asleep, py::arg("address"));
  module.def("unpin", &unpin, py::arg("address"), py::arg("size"));
  module.def("sleep", &fall_asleep, py::arg("device"), py::arg("tags"), py::arg("keep"),
             py::arg("except_"), py::arg("strict"));
  module.def("wake", &wake_up, py::arg("device"), py::arg("tags"));
  module.def("sleep_view", &sleep_view, py::arg("device"));
  module.def("asleep_pools", &asleep_pools, py::arg("device"));
  module.def("trim_host_memory", &trim_host_memory, py::arg("device"));
  module.def("check_invariants", &check_invariants, py::arg("device"));
  module.def("driver_table_address", &driver_table_address);
}
