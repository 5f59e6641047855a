#include "python/peak.h"

#include "ferro/adapter/history/tags.h"
#include "ferro/adapter/peak/peak_recorder.h"
#include "python/python_frames.h"
#include "python/text.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace ferro {
namespace {

// Guarded by the GIL. Never destroyed, because requests come until the process ends.
struct Program {
  std::vector<std::string> skipped;  // beginnings of file names that are not the program's own
  py::function when_grown;
  PyThreadState* main = nullptr;
  bool in_callback = false;
  std::size_t max_entries = 1;  // of the history; if larger, contexts have frames
  torch::CapturedTraceback::Python* gatherer = nullptr;
  // Maps the type of a node of autograd to the code object that represents it.
  std::unordered_map<const char*, PyCodeObject*> nodes;
  // Keeps the code objects alive, so that no other object gets their addresses.
  std::unordered_map<PyCodeObject*, bool> is_own;
  std::map<std::tuple<PyCodeObject*, int, const char*>, std::uint32_t> ids;
  // File, line, function and, in a backward pass, the node of autograd.
  std::vector<std::tuple<std::string, int, std::string, std::string>> lines{{"", 0, "", ""}};
};

Program& program() {
  static Program* const only = new Program;
  return *only;
}

bool is_own(PyCodeObject* code) {
  Program& all = program();
  if (const auto found = all.is_own.find(code); found != all.is_own.end()) {
    return found->second;
  }
  const std::string file = utf8_of(code->co_filename);
  bool own = true;
  for (const std::string& beginning : all.skipped) {
    own = own && !file.starts_with(beginning);
  }
  Py_INCREF(code);
  return all.is_own.emplace(code, own).first->second;
}

// The type of the node of autograd that runs in this thread; null for none.
const char* current_node() {
  const auto node = torch::autograd::get_current_node();
  return node == nullptr ? nullptr : typeid(*node).name();
}

std::string name_of_node(const char* type) {
  const std::string name = c10::demangle(type);
  return name.substr(name.rfind(':') + 1);
}

std::uint32_t id_of(PyCodeObject* code, int line) {
  Program& all = program();
  const char* type = current_node();
  const auto [entry, is_new] = all.ids.try_emplace({code, line, type}, 0);
  if (is_new) {
    entry->second = static_cast<std::uint32_t>(all.lines.size());
    all.lines.emplace_back(utf8_of(code->co_filename), line, utf8_of(code->co_name),
                           type == nullptr ? "" : name_of_node(type));
  }
  return entry->second;
}

// The innermost line of the program's own at or above the frame; 0 if there is none. Takes over the
// reference to the frame.
std::uint32_t find_line(PyFrameObject* frame) {
  std::uint32_t found = 0;
  while (frame != nullptr && found == 0) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    if (is_own(code)) {
      found = id_of(code, PyFrame_GetLineNumber(frame));
    }
    Py_DECREF(code);
    PyFrameObject* const caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
  Py_XDECREF(frame);
  return found;
}

// A stack, because PyTorch's snapshots accept no other kind of context. It has no frames, or those
// of Python if the history has stacks.
struct ProgramContext : torch::CapturedTraceback, RequestContext {
  ProgramContext() = default;
  explicit ProgramContext(torch::CapturedTraceback&& stack)
      : torch::CapturedTraceback(std::move(stack)) {}
};

std::shared_ptr<ProgramContext> make_context() {
  if (program().max_entries == 1) {
    return std::make_shared<ProgramContext>();
  }
  return std::make_shared<ProgramContext>(
      std::move(*torch::CapturedTraceback::gather(true, false, false)));
}

// Appends the frame and its callers. Takes over the reference to the frame.
void append_frames(PyFrameObject* frame, PythonFrames& frames) {
  while (frame != nullptr) {
    frames.push_back({PyFrame_GetCode(frame), PyFrame_GetLasti(frame)});
    PyFrameObject* const caller = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = caller;
  }
}

// A thread of autograd has no frames. Its context gets those of the main thread, which waits, with
// the thread's node in front.
void complete_frames(ProgramContext& context) {
  Program& all = program();
  PythonFrames& frames = python_frames_of(context);
  torch::CapturedTraceback::Python*& gatherer = gatherer_of(context);
  if (gatherer != nullptr) {
    all.gatherer = gatherer;
  }
  gatherer = all.gatherer;
  if (gatherer == nullptr) {
    return;
  }
  if (frames.empty() && all.main != nullptr) {
    append_frames(PyThreadState_GetFrame(all.main), frames);
  }
  if (const char* type = current_node()) {
    PyCodeObject*& code = all.nodes[type];
    if (code == nullptr) {
      code = PyCode_NewEmpty("<autograd>", name_of_node(type).c_str(), 1);
    }
    if (code == nullptr) {
      PyErr_Clear();
      return;
    }
    Py_INCREF(code);
    frames.insert(frames.begin(), {code, 0});
  }
}

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

std::shared_ptr<c10::GatheredContext> gather() {
  if (Py_IsInitialized() == 0) {
    return std::make_shared<ProgramContext>();
  }
  const py::gil_scoped_acquire acquire;
  // Preserves an error that propagates through the caller.
  const py::error_scope kept;
  auto context = make_context();
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  context->line = find_line(frame);
  Program& all = program();
  if (context->line == 0 && all.main != nullptr) {
    // A thread of autograd: takes the line in which the main thread waits.
    context->line = find_line(PyThreadState_GetFrame(all.main));
  }
  if (all.max_entries > 1) {
    complete_frames(*context);
  }
  if (!all.in_callback && all.when_grown && PeakRecorder::take_growth()) {
    all.in_callback = true;
    try {
      all.when_grown();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("ferro_alloc's record of the peak");
    }
    all.in_callback = false;
  }
  return context;
}

// Called again after another allocator is installed.
void follow() { PeakRecorder::start(gather, in_backward, program().max_entries); }

void start(std::vector<std::string> skipped, py::function when_grown, std::size_t max_entries) {
  Program& all = program();
  all.skipped = std::move(skipped);
  all.when_grown = std::move(when_grown);
  all.main = PyThreadState_Get();
  all.max_entries = std::max<std::size_t>(max_entries, 1);
  follow();
}

void stop() {
  PeakRecorder::stop();
  program().when_grown = py::function();
  program().main = nullptr;
}

const std::vector<std::pair<const char*, BlockKind>>& kinds() {
  static const std::vector<std::pair<const char*, BlockKind>> named = {
      {"parameters", BlockKind::kParameters},    {"buffers", BlockKind::kBuffers},
      {"optimizer", BlockKind::kOptimizerState}, {"gradients", BlockKind::kGradients},
      {"kv_cache", BlockKind::kKvCache},         {"libraries", BlockKind::kLibraries},
      {"activations", BlockKind::kActivations},  {"graphs", BlockKind::kGraphs},
      {"temporaries", BlockKind::kTemporaries},  {"other", BlockKind::kOther}};
  return named;
}

void declare(int device, const std::vector<std::size_t>& addresses, const std::string& kind) {
  for (const auto& [name, value] : kinds()) {
    if (kind == name) {
      PeakRecorder::declare(static_cast<c10::DeviceIndex>(device), addresses, value);
      return;
    }
  }
  throw py::value_error("there is no kind of blocks named " + kind);
}

py::list sums(int device, bool at_peak) {
  py::list found;
  for (const BlockSum& sum : PeakRecorder::sums(static_cast<c10::DeviceIndex>(device), at_peak)) {
    const auto& [file, line, function, node] = program().lines.at(sum.line);
    found.append(py::make_tuple(kinds().at(static_cast<std::size_t>(sum.kind)).first, file, line,
                                function, node, sum.bytes, sum.count,
                                tag_names().name_of(sum.tag)));
  }
  return found;
}

// Two arrays in bytes: addresses of 8 bytes, and kinds of one byte, indices of `peak_kind_names`.
py::tuple kinds_by_address(int device) {
  std::string addresses;
  std::string found;
  for (const auto& [address, kind] : PeakRecorder::kinds(static_cast<c10::DeviceIndex>(device))) {
    addresses.append(reinterpret_cast<const char*>(&address), sizeof address);
    found.push_back(static_cast<char>(kind));
  }
  return py::make_tuple(py::bytes(addresses), py::bytes(found));
}

}  // namespace

void bind_peak(py::module_& module) {
  module.def("peak_start", &start, py::arg("skipped"), py::arg("when_grown"),
             py::arg("max_entries"));
  module.def("peak_follow", &follow);
  module.def("peak_stop", &stop);
  module.def("peak_begin_phase", &PeakRecorder::begin_phase);
  module.def("peak_declare", &declare, py::arg("device"), py::arg("addresses"), py::arg("kind"));
  module.def("peak_declare_libraries", &PeakRecorder::declare_libraries);
  module.def(
      "peak_bytes",
      [](int device) { return PeakRecorder::peak_bytes(static_cast<c10::DeviceIndex>(device)); },
      py::arg("device"));
  module.def(
      "peak_live_bytes",
      [](int device) { return PeakRecorder::live_bytes(static_cast<c10::DeviceIndex>(device)); },
      py::arg("device"));
  module.def("peak_kinds", &kinds_by_address, py::arg("device"));
  module.def("peak_kind_names", [] {
    py::list names;
    for (const auto& [name, kind] : kinds()) {
      names.append(name);
    }
    return names;
  });
  module.def("peak_sums", &sums, py::arg("device"), py::arg("at_peak"));
}

}  // namespace ferro
