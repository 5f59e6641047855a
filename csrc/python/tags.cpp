#include "python/tags.h"

#include "ferro/adapter/allocator/cuda_allocator.h"
#include "ferro/adapter/allocator/installed_allocator.h"
#include "ferro/adapter/history/request_tag.h"
#include "ferro/adapter/history/tag_limits.h"
#include "ferro/adapter/history/tags.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace py = pybind11;

namespace ferro {
namespace {

bool find_place_of_node(ForwardPlace* place) {
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) {
    return false;
  }
  // Accumulators of gradients belong to no forward code; PyTorch gives them the largest number.
  if (node->sequence_nr() != std::numeric_limits<std::uint64_t>::max()) {
    *place = {node->thread_id(), node->sequence_nr()};
  }
  return true;
}

void tag_pool(const std::pair<std::uint64_t, std::uint64_t>& handle, const std::string& name) {
  const py::gil_scoped_release release;
  const BlockTag tag = tag_names().tag_of(name);
  CudaAllocator* allocator = installed_allocator();
  if (allocator != nullptr && tag != 0) {
    allocator->count_tags();
  }
  set_tag_of_pool({handle.first, handle.second}, tag);
}

// The function is called, and dropped, in any thread.
TagLimit::OnSoft with_interpreter(py::function function) {
  const std::shared_ptr<py::function> kept(new py::function(std::move(function)),
                                           [](py::function* dropped) {
                                             if (Py_IsInitialized() != 0) {
                                               const py::gil_scoped_acquire acquire;
                                               delete dropped;
                                             }
                                           });
  return [kept](std::size_t live_bytes) {
    if (Py_IsInitialized() == 0) {
      return;
    }
    const py::gil_scoped_acquire acquire;
    try {
      (*kept)(live_bytes);
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("the function for the soft limit of a tag");
    }
  };
}

// None: no limit. False, and nothing changes: the tag shares its number with others.
bool set_tag_limit(const std::string& name, std::optional<std::size_t> soft,
                   std::optional<std::size_t> hard, std::optional<py::function> on_soft) {
  TagLimit limit;
  limit.soft = soft.value_or(TagLimit::kNone);
  limit.hard = hard.value_or(TagLimit::kNone);
  if (on_soft) {
    limit.on_soft = with_interpreter(std::move(*on_soft));
  }
  const py::gil_scoped_release release;
  const BlockTag tag = tag_names().tag_of(name);
  if (tag == TagNames::kMaxTags) {
    return false;
  }
  tag_limits().set(tag, std::move(limit));
  if (CudaAllocator* allocator = installed_allocator()) {
    allocator->follow_tag_limits();
  }
  return true;
}

// (name, live bytes, blocks, peak of live bytes, reserved bytes) of each tag that has live blocks or
// had some since the last reset of peaks.
py::list tag_memory(int device) {
  py::list found;
  const CudaAllocator* allocator = installed_allocator();
  DeviceMemory* core = allocator != nullptr ? allocator->core_of(device) : nullptr;
  if (core == nullptr) {
    return found;
  }
  TagBytes reserved;
  {
    const py::gil_scoped_release release;
    reserved = core->report().reserved_by_tag();
  }
  for (const TagTotal& tag :
       allocator->tags(static_cast<c10::DeviceIndex>(device), TagSums::Tags::kAll)) {
    const auto pages = reserved.find(tag.tag);
    found.append(py::make_tuple(tag.name, tag.total.bytes, tag.total.blocks, tag.peak,
                                pages != reserved.end() ? pages->second : 0));
  }
  return found;
}

}  // namespace

void bind_tags(py::module_& module) {
  set_find_forward_place(&find_place_of_node);
  module.def("tag_pool", &tag_pool, py::arg("handle"), py::arg("name"));
  module.def("set_tag_limit", &set_tag_limit, py::arg("name"), py::arg("soft"), py::arg("hard"),
             py::arg("on_soft"));
  module.def("tag_names", [] { return tag_names().all(); });
  module.def("tag_memory", &tag_memory, py::arg("device"));
}

}  // namespace ferro
