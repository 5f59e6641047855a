#include "python/graph_debug.h"

#include "ferro/adapter/allocator/installed_allocator.h"
#include "ferro/adapter/graphs/graph_uses.h"
#include "ferro/adapter/graphs/last_replay.h"
#include "ferro/adapter/history/tags.h"
#include "python/python_frames.h"
#include "python/text.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace ferro {
namespace {

using torch::wrap_pybind_function;
using torch::wrap_pybind_function_no_gil;

using Handle = std::pair<std::uint64_t, std::uint64_t>;

// Called only while the allocator is installed.
void debug_graphs(bool on) {
  static std::optional<ScrubbedStacks> scrubbed;  // guarded by the GIL
  installed_allocator()->watch_blocks(on);
  if (on) {
    scrubbed.emplace();
  } else {
    scrubbed.reset();
  }
}

bool is_pool_held(const Handle& handle) {
  return installed_allocator()->holds_pool({handle.first, handle.second});
}

// (file, line, function), innermost first; empty if they were not recorded.
py::list frames_of(const CallContext& context) {
  py::list frames;
  if (torch::CapturedTraceback* stack = traceback_of(context)) {
    for (const auto& frame : python_frames_of(*stack)) {
      auto* code = static_cast<PyCodeObject*>(frame.code);
      frames.append(py::make_tuple(utf8_of(code->co_filename), PyCode_Addr2Line(code, frame.lasti),
                                   utf8_of(code->co_name)));
    }
  }
  return frames;
}

struct FoundBlock {
  WatchedBlocks::Handle block;
  bool workspace;
};

// The largest block that is freed, or that is not.
std::optional<FoundBlock> largest_of(const std::vector<GraphUses::Use>& uses, bool freed) {
  const GraphUses::Use* largest = nullptr;
  for (const GraphUses::Use& use : uses) {
    if (use.block->is_freed() == freed &&
        (largest == nullptr || use.block->size() > largest->block->size())) {
      largest = &use;
    }
  }
  return largest == nullptr ? std::nullopt
                            : std::optional(FoundBlock{largest->block, largest->workspace});
}

std::vector<FoundBlock> in_scratch_of(const GraphUses& uses, const GraphUses& other) {
  std::vector<FoundBlock> found;
  for (const GraphUses::Use& use : uses.in_scratch_of(other)) {
    found.push_back({use.block, use.workspace});
  }
  return found;
}

std::vector<FoundBlock> freed_of(const std::vector<GraphUses::Use>& uses) {
  std::vector<FoundBlock> freed;
  for (const GraphUses::Use& use : uses) {
    if (use.block->is_freed()) {
      freed.push_back({use.block, use.workspace});
    }
  }
  return freed;
}

// The blocks outside of the graph's pool that are asleep.
std::vector<FoundBlock> asleep_of(const GraphUses& uses) {
  std::vector<FoundBlock> asleep;
  for (const GraphUses::Use& use : uses.outside()) {
    if (!use.block->is_freed() && installed_allocator()->is_asleep(use.block->ptr())) {
      asleep.push_back({use.block, use.workspace});
    }
  }
  return asleep;
}

}  // namespace

void bind_graph_debug(py::module_& module) {
  module.def("debug_graphs", wrap_pybind_function(&debug_graphs), py::arg("on"));
  module.def("freed_in_captures",
             [] { return installed_allocator()->watched_blocks().freed_in_captures(); });
  module.def("frees", [] { return installed_allocator()->watched_blocks().frees(); });
  module.def("is_pool_held", wrap_pybind_function(&is_pool_held), py::arg("handle"));
  py::class_<FoundBlock>(module, "FoundBlock")
      .def_property_readonly("address",
                             [](const FoundBlock& found) { return address_of(found.block->ptr()); })
      .def_property_readonly("bytes",
                             [](const FoundBlock& found) { return found.block->requested(); })
      .def_property_readonly("pool",
                             [](const FoundBlock& found) -> Handle {
                               const PoolId& id = found.block->pool();
                               return {id.graph, id.handle};
                             })
      .def_property_readonly("free_number",
                             [](const FoundBlock& found) { return found.block->free_number(); })
      .def_property_readonly(
          "tag", [](const FoundBlock& found) { return tag_names().name_of(found.block->tag()); })
      .def_readonly("is_workspace", &FoundBlock::workspace)
      .def_property_readonly(
          "allocated_at",
          [](const FoundBlock& found) { return frames_of(found.block->allocated_at()); })
      .def_property_readonly(
          "freed_at", [](const FoundBlock& found) { return frames_of(found.block->freed_at()); });
  py::class_<GraphUses>(module, "GraphUses")
      .def(py::init([](c10::DeviceIndex device, std::uint64_t stream, std::size_t mark) {
             return std::make_unique<GraphUses>(device, StreamId{stream}, mark);
           }),
           py::arg("device"), py::arg("stream"), py::arg("mark"))
      .def("settle", wrap_pybind_function([](GraphUses& uses, const Handle& pool) {
             uses.settle({pool.first, pool.second});
           }),
           py::arg("pool"))
      .def_property_readonly("blocks",
                             [](const GraphUses& uses) {
                               return uses.outside().size() + uses.within().size() +
                                      uses.own().size();
                             })
      .def("asleep", &asleep_of)
      .def("freed_outside", [](const GraphUses& uses) { return freed_of(uses.outside()); })
      .def(
          "largest_own",
          [](const GraphUses& uses, bool freed) { return largest_of(uses.own(), freed); },
          py::arg("freed"))
      .def(
          "made",
          [](const GraphUses& uses, const FoundBlock& found) {
            return std::ranges::find(uses.own(), found.block, &GraphUses::Use::block) !=
                   uses.own().end();
          },
          py::arg("block"))
      .def("in_scratch_of", wrap_pybind_function(&in_scratch_of), py::arg("other"))
      .def("freed_within", [](const GraphUses& uses) { return freed_of(uses.within()); })
      .def(
          "is_of_capture",
          [](const GraphUses& uses, const FoundBlock& found) {
            return uses.is_of_capture(found.block->ptr(), found.block->size());
          },
          py::arg("block"));
  py::class_<LastReplay>(module, "LastReplay")
      .def(py::init<>())
      .def("is_overtaken_by", wrap_pybind_function_no_gil(&LastReplay::is_overtaken_by),
           py::arg("stream"), py::arg("device"))
      .def("set", wrap_pybind_function_no_gil(&LastReplay::set), py::arg("stream"),
           py::arg("device"));
}

}  // namespace ferro
