#include "python/peak.h"

#include "ferro/adapter/peak/peak_recorder.h"
#include "python/text.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/profiler/combined_traceback.h>

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

// Everything here is guarded by the interpreter's lock, and never destroyed: requests come until the
// process ends.
struct Program {
  std::vector<std::string> skipped;  // beginnings of file names that are not the program's own
  py::function when_grown;
  PyThreadState* main = nullptr;
  bool in_callback = false;
  // Code objects are kept, so that none takes the place of another.
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

std::uint32_t id_of(PyCodeObject* code, int line) {
  Program& all = program();
  const auto node = torch::autograd::get_current_node();
  const char* type = node == nullptr ? nullptr : typeid(*node).name();
  const auto [entry, is_new] = all.ids.try_emplace({code, line, type}, 0);
  if (is_new) {
    entry->second = static_cast<std::uint32_t>(all.lines.size());
    std::string name = type == nullptr ? "" : c10::demangle(type);
    name = name.substr(name.rfind(':') + 1);
    all.lines.emplace_back(utf8_of(code->co_filename), line, utf8_of(code->co_name),
                           std::move(name));
  }
  return entry->second;
}

// The innermost line of the program's own at or above the frame, which it takes; 0 without one.
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

// To PyTorch's snapshots, which take no other kind of context, it is a stack without frames.
struct ProgramContext : torch::CapturedTraceback, RequestContext {};

bool in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

std::shared_ptr<c10::GatheredContext> gather() {
  auto context = std::make_shared<ProgramContext>();
  if (Py_IsInitialized() == 0) {
    return context;
  }
  const py::gil_scoped_acquire acquire;
  // An error that is on its way through the caller stays as it is.
  const py::error_scope kept;
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  context->line = find_line(frame);
  Program& all = program();
  if (context->line == 0 && all.main != nullptr) {
    // A thread of autograd's: the line that the main thread waits in.
    context->line = find_line(PyThreadState_GetFrame(all.main));
  }
  if (!all.in_callback && all.when_grown && PeakRecorder::get().take_growth()) {
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

void start(std::vector<std::string> skipped, py::function when_grown) {
  Program& all = program();
  all.skipped = std::move(skipped);
  all.when_grown = std::move(when_grown);
  all.main = PyThreadState_Get();
  PeakRecorder::get().start(gather, in_backward);
}

// Any thread: another allocator may be in place by now.
void follow() { PeakRecorder::get().start(gather, in_backward); }

void stop() {
  PeakRecorder::get().stop();
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

void say(int device, const std::vector<std::size_t>& addresses, const std::string& kind) {
  for (const auto& [name, value] : kinds()) {
    if (kind == name) {
      PeakRecorder::get().say(static_cast<c10::DeviceIndex>(device), addresses, value);
      return;
    }
  }
  throw py::value_error("there is no kind of blocks named " + kind);
}

py::list sums(int device, bool at_peak) {
  py::list found;
  for (const BlockSum& sum :
       PeakRecorder::get().sums(static_cast<c10::DeviceIndex>(device), at_peak)) {
    const auto& [file, line, function, node] = program().lines.at(sum.line);
    found.append(py::make_tuple(kinds().at(static_cast<std::size_t>(sum.kind)).first, file, line,
                                function, node, sum.bytes, sum.count));
  }
  return found;
}

}  // namespace

void bind_peak(py::module_& module) {
  module.def("peak_start", &start, py::arg("skipped"), py::arg("when_grown"));
  module.def("peak_follow", &follow);
  module.def("peak_stop", &stop);
  module.def("peak_begin_phase", [] { PeakRecorder::get().begin_phase(); });
  module.def("peak_say", &say, py::arg("device"), py::arg("addresses"), py::arg("kind"));
  module.def("peak_say_libraries", [] { PeakRecorder::get().say_libraries(); });
  module.def(
      "peak_bytes",
      [](int device) {
        return PeakRecorder::get().peak_bytes(static_cast<c10::DeviceIndex>(device));
      },
      py::arg("device"));
  module.def(
      "peak_live_bytes",
      [](int device) {
        return PeakRecorder::get().live_bytes(static_cast<c10::DeviceIndex>(device));
      },
      py::arg("device"));
  module.def("peak_sums", &sums, py::arg("device"), py::arg("at_peak"));
}

}  // namespace ferro
