#include "values/places.h"

#include "values/value.h"

#include <c10/util/Type.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <typeinfo>
#include <utility>

namespace py = pybind11;

namespace ferro::values {
namespace {

constexpr std::size_t kMaxReported = 20;
constexpr std::size_t kMaxKept = 1000;
constexpr std::size_t kMaxReached = 20;  // of what the numbers of a place reach

struct Notes {
  std::mutex mutex;
  std::vector<Read> reads;
  std::uint64_t read_count = 0;
  std::map<std::pair<std::string, std::string>, std::size_t> read_at;
  std::vector<Failure> failures;
  std::vector<std::pair<std::uint64_t, std::string>> done_without;
  std::vector<std::pair<std::string, std::string>> kernels;
};

thread_local int as_integers = 0;
thread_local int as_text = 0;
thread_local int as_text_of_integers = 0;
// What reads learned since begin_probe(); none if the thread does not probe.
thread_local std::optional<ferro_sim_certainty> probed;
std::atomic<bool> shown_is_reported = false;

// Never destroyed: threads of autograd may outlive the program's end.
Notes& notes() {
  static Notes* const instance = new Notes;
  return *instance;
}

std::vector<std::string>& library_folders() {
  static auto* const folders = new std::vector<std::string>;
  return *folders;
}

std::string& standard_library() {
  static auto* const folder = new std::string;
  return *folder;
}

// Also what Inductor generates, and Python's own start of a program.
bool is_of_torch(const std::string& file) {
  return file.starts_with("<frozen ") || file.find("/torchinductor_") != std::string::npos ||
         std::any_of(library_folders().begin(), library_folders().end(),
                     [&](const std::string& folder) { return file.starts_with(folder); });
}

// What the source tells of a read. Never destroyed: a thread may read after Python's end.
struct Uses {
  py::function reached;
  py::function is_harmless;
  py::function handler_around;
};
Uses& uses() {
  static auto* const functions = new Uses;
  return *functions;
}

py::object current_frame() {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
}

std::string file_of(const py::object& frame) {
  return frame.attr("f_code").attr("co_filename").cast<std::string>();
}

// The frame whose innermost call reads; null if that is one of a library folder.
py::object reading_frame() {
  py::object frame = current_frame();
  // What counts these calls is a function of this package.
  while (as_integers > 0 && frame && !frame.is_none() && is_of_torch(file_of(frame))) {
    frame = frame.attr("f_back");
  }
  return frame && !frame.is_none() && !is_of_torch(file_of(frame)) ? frame : py::object();
}

// The frame of PyTorch's whose innermost call reads; null if that is not a file of PyTorch's.
py::object frame_of_torch() {
  const auto& folders = library_folders();  // the first one is this package's
  py::object frame = current_frame();
  while (frame && !frame.is_none() && !folders.empty() &&
         file_of(frame).starts_with(folders.front())) {
    frame = frame.attr("f_back");
  }
  if (!frame || frame.is_none() || folders.empty()) {
    return {};
  }
  const std::string file = file_of(frame);
  const bool found =
      std::any_of(std::next(folders.begin()), folders.end(),
                  [&](const std::string& folder) { return file.starts_with(folder); });
  return found ? frame : py::object();
}

// The frame of the program, or of a library that it uses, which makes a text of a tensor.
py::object frame_of_text() {
  py::object frame = current_frame();
  while (frame && !frame.is_none() && is_of_torch(file_of(frame))) {
    frame = frame.attr("f_back");
  }
  return frame && !frame.is_none() ? frame : py::object();
}

// Whether the text that the thread makes of integers reaches nothing but places that show it.
bool is_text_harmless() {
  if (Py_IsInitialized() == 0) {
    return false;
  }
  const py::gil_scoped_acquire gil;
  const py::error_scope kept;
  const py::object frame = frame_of_text();
  return frame && uses().is_harmless && uses().is_harmless(frame, true).cast<bool>();
}

// Also what libraries make of text, and Python's own library.
bool is_installed(const std::string& file) {
  return file == "<string>" || file.find("-packages/") != std::string::npos ||
         (!standard_library().empty() && file.starts_with(standard_library()));
}

// PyTorch's function that waits for a backward pass.
bool runs_backward(const py::object& frame) {
  return frame.attr("f_code").attr("co_name").cast<std::string>() == "_engine_run_backward";
}

// The innermost line of the program at or above the frame, else of a library that it uses. With
// autograd's node, if the frames inside of the backward pass have no line of the program.
std::string place_of(py::object frame) {
  std::string of_library;
  bool in_backward = false;
  const auto with_node = [&](std::string place) {
    const auto node = in_backward ? torch::autograd::get_current_node() : nullptr;
    if (node == nullptr || place.empty()) {
      return place;
    }
    const std::string name = c10::demangle(typeid(*node).name());
    return place + " (" + name.substr(name.rfind(':') + 1) + ")";
  };
  for (; frame && !frame.is_none(); frame = frame.attr("f_back")) {
    const std::string file = file_of(frame);
    if (is_of_torch(file)) {
      in_backward = in_backward || runs_backward(frame);
      continue;
    }
    if (is_installed(file) && !of_library.empty()) {
      continue;
    }
    std::string place = file.substr(file.rfind('/') + 1) + ":" +
                        py::str(frame.attr("f_lineno")).cast<std::string>();
    if (!is_installed(file)) {
      return with_node(std::move(place));
    }
    of_library = with_node(std::move(place));
  }
  return of_library;
}

// The frame of the thread that waits for this thread's backward pass; the main thread's if that is
// not known.
py::object waiting_frame() {
  const auto frames = py::module_::import("sys").attr("_current_frames")().cast<py::dict>();
  const py::object main = py::module_::import("threading").attr("main_thread")().attr("ident");
  py::object found = frames.attr("get")(main);
  if (!found.is_none() && runs_backward(found)) {
    return found;
  }
  std::vector<py::object> waiting;
  for (const auto& [thread, frame] : frames) {
    if (runs_backward(py::reinterpret_borrow<py::object>(frame))) {
      waiting.push_back(py::reinterpret_borrow<py::object>(frame));
    }
  }
  return waiting.size() == 1 ? waiting.front() : found;
}

std::string current_place() {
  if (Py_IsInitialized() == 0) {
    return {};
  }
  const py::gil_scoped_acquire gil;
  // Preserves an error that propagates through the caller.
  const py::error_scope kept;
  std::string place = place_of(current_frame());
  // A thread of autograd has no line of its own.
  const bool is_autograds = torch::autograd::get_current_graph_task_id() != -1;
  return place.empty() && is_autograds ? place_of(waiting_frame()) : place;
}

struct Mark {
  const char* in_message;
  const char* library;
};
constexpr Mark kMarks[] = {
    {"cuFFT", "cuFFT"},   {"CUFFT", "cuFFT"}, {"cusolver", "cuSOLVER"}, {"CUSOLVER", "cuSOLVER"},
    {"cuDNN", "cuDNN"},   {"CUDNN", "cuDNN"}, {"cusparse", "cuSPARSE"}, {"CUSPARSE", "cuSPARSE"},
    {"CUBLAS", "cuBLAS"}, {"MAGMA", "MAGMA"}, {"NVRTC", "NVRTC"},       {"nvrtc", "NVRTC"},
    {"curand", "cuRAND"},
};
// Messages of errors that a card raises too.
constexpr const char* kErrorsOfCards[] = {"CUFFT_INVALID_SIZE", "cuFFT only supports"};

}  // namespace

void set_library_folders(std::vector<std::string> folders, std::string standard) {
  library_folders() = std::move(folders);
  standard_library() = standard.empty() ? "" : std::move(standard) + "/";
  for (std::string& folder : library_folders()) {
    folder += '/';
  }
}

void note_read(const std::string& operation, Learned learned, const std::vector<std::string>& where,
               const std::string& rows_of_size, bool integers) {
  const bool of_draws = learned == Learned::kDrawn || learned == Learned::kDrawnFloat;
  if (probed) {
    probed = std::min(*probed, of_draws ? FERRO_SIM_DRAWN : FERRO_SIM_UNKNOWN);
    return;
  }
  std::string place = current_place();
  if (as_text > 0 && (as_text_of_integers == 0 || is_text_harmless())) {
    learned = of_draws ? Learned::kDrawnFloat : Learned::kFloat;
  }
  const std::string of_masks = take_mask_reads();
  const bool is_number = learned == Learned::kInteger || learned == Learned::kDecidingFloat;
  const std::string rows = is_number ? of_masks : rows_of_size;
  Notes& n = notes();
  const std::lock_guard lock(n.mutex);
  ++n.read_count;
  if (n.reads.size() >= kMaxKept && !n.read_at.contains({place, operation})) {
    place = "other places";
  }
  const auto [found, fresh] = n.read_at.try_emplace({place, operation}, n.reads.size());
  if (!fresh) {
    Read& read = n.reads[found->second];
    ++read.count;
    read.learned = std::max(read.learned, learned);
    read.last = n.read_count;
    for (const std::string& each : where) {
      std::vector<std::string>& all = read.reached;
      if (all.size() < kMaxReached && std::find(all.begin(), all.end(), each) == all.end()) {
        all.push_back(each);
      }
    }
    if (!rows.empty()) {
      read.rows = read.rows.empty() || read.rows == rows ? rows : "zeros";
    }
    return;
  }
  const bool is_float_or_text = as_text > 0 || !integers;
  const bool is_silent = learned == Learned::kFloat && is_float_or_text && shown_is_reported;
  if (n.reads.size() < kMaxReported && !is_silent) {
    std::fprintf(stderr, "ferro_alloc: %s reads values that %s (%s)\n",
                 place.empty() ? "the program" : place.c_str(),
                 of_draws ? "follow from choices or numbers that the simulated GPU drew"
                          : "the simulated GPU did not compute",
                 operation.c_str());
  }
  n.reads.push_back({std::move(place), operation, 1, learned, n.read_count, where, rows});
}

void leave_shown_to_report() { shown_is_reported = true; }

void use_as_integers(int change) { as_integers += change; }
void use_as_text(int change) { as_text += change; }
void use_as_text_of_integers(int change) {
  as_text += change;
  as_text_of_integers += change;
}
bool is_used_as_integer() { return as_integers > 0; }

void set_uses(py::function reached, py::function is_harmless, py::function handler_around) {
  uses() = {std::move(reached), std::move(is_harmless), std::move(handler_around)};
}

std::string handler_around() {
  if (Py_IsInitialized() == 0) {
    return {};
  }
  const py::gil_scoped_acquire gil;
  const py::error_scope kept;
  const py::object frame = current_frame();
  return frame && uses().handler_around ? uses().handler_around(frame).cast<std::string>()
                                        : std::string();
}

void begin_probe() { probed = FERRO_SIM_KNOWN; }

ferro_sim_certainty end_probe() {
  return std::exchange(probed, std::nullopt).value_or(FERRO_SIM_KNOWN);
}

bool is_harmless() {
  if (as_text > 0 || probed || Py_IsInitialized() == 0) {
    return false;
  }
  const py::gil_scoped_acquire gil;
  const py::object frame = reading_frame();
  return frame && uses().is_harmless && uses().is_harmless(frame, false).cast<bool>();
}

std::vector<std::string> reached(bool integers) {
  if (as_text > 0 || probed || Py_IsInitialized() == 0) {
    return {};
  }
  const py::gil_scoped_acquire gil;
  py::object frame = reading_frame();
  if (!frame && !integers && as_integers == 0) {
    frame = frame_of_torch();
  }
  std::vector<std::string> found;
  if (frame && uses().reached) {
    found = uses().reached(frame, integers).cast<std::vector<std::string>>();
  }
  if (found.empty() && as_integers > 0 && !integers) {
    found.emplace_back("a conversion to an integer or a condition in the same line");
  }
  return found;
}

void note_failure(const std::string& operation, const std::string& message, bool leaves) {
  const auto* const mark = std::find_if(
      std::begin(kMarks), std::end(kMarks),
      [&](const Mark& known) { return message.find(known.in_message) != std::string::npos; });
  const bool is_of_cards =
      std::any_of(std::begin(kErrorsOfCards), std::end(kErrorsOfCards),
                  [&](const char* known) { return message.find(known) != std::string::npos; });
  if (mark == std::end(kMarks) || is_of_cards) {
    return;
  }
  const std::string place = current_place();
  Notes& n = notes();
  const std::lock_guard lock(n.mutex);
  auto found = std::find_if(n.failures.begin(), n.failures.end(), [&](const Failure& other) {
    return other.library == mark->library && other.operation == operation && other.place == place;
  });
  if (found == n.failures.end()) {
    if (n.failures.size() >= kMaxKept) {
      return;
    }
    n.failures.push_back({mark->library, operation, message.substr(0, message.find('\n')), place});
    found = std::prev(n.failures.end());
  }
  found->count += leaves ? 1 : 0;
}

void note_kernel(const std::string& name) {
  std::string place = current_place();
  Notes& n = notes();
  const std::lock_guard lock(n.mutex);
  n.kernels.emplace_back(name, std::move(place));
}

void note_done_without(std::uint64_t request, const std::string& operation) {
  Notes& n = notes();
  const std::lock_guard lock(n.mutex);
  n.done_without.emplace_back(request, operation);
}

std::vector<Read> reads() {
  Notes& n = notes();
  const std::lock_guard lock(n.mutex);
  return n.reads;
}

std::vector<Failure> failures() {
  Notes& n = notes();
  const std::lock_guard lock(n.mutex);
  return n.failures;
}

std::vector<std::pair<std::string, std::string>> kernels() {
  Notes& n = notes();
  const std::lock_guard lock(n.mutex);
  return n.kernels;
}

std::vector<std::pair<std::uint64_t, std::string>> done_without() {
  Notes& n = notes();
  const std::lock_guard lock(n.mutex);
  return n.done_without;
}

}  // namespace ferro::values
