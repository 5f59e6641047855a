#include "python/call_sites.h"

#include "ferro/adapter/history/call_sites.h"
#include "python/python_frames.h"
#include "python/text.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace ferro {
namespace {

// Guarded by the GIL. Never destroyed, because requests may fail until the process ends.
struct Words {
  std::vector<std::string> libraries;  // parts of file names whose lines are not the program's
  std::string no_line;                 // instead of a line, if no Python was on the stack
};

Words& words() {
  static Words* const only = new Words;
  return *only;
}

// Chooses the line that represents a stack, like `line_of` of ferro_alloc/snapshots/_stacks.py.
class Lines {
 public:
  std::string line_of(const PythonFrames& frames) {
    if (frames.empty()) {
      return words().no_line;
    }
    const auto own =
        std::ranges::find_if(frames, [this](const auto& frame) { return is_own(code_of(frame)); });
    const auto& frame = own != frames.end() ? *own : frames.front();
    std::string& text = texts_[{frame.code, frame.lasti}];
    if (text.empty()) {
      PyCodeObject* code = code_of(frame);
      text = last_two_parts(utf8_of(code->co_filename)) + ":" +
             std::to_string(PyCode_Addr2Line(code, frame.lasti)) + " " + utf8_of(code->co_name);
    }
    return text;
  }

 private:
  static PyCodeObject* code_of(const torch::CapturedTraceback::PyFrame& frame) {
    return static_cast<PyCodeObject*>(frame.code);
  }

  static std::string last_two_parts(const std::string& file) {
    const std::size_t last = file.rfind('/');
    const std::size_t before =
        last == 0 || last == std::string::npos ? std::string::npos : file.rfind('/', last - 1);
    return before == std::string::npos ? file : file.substr(before + 1);
  }

  bool is_own(PyCodeObject* code) {
    const auto [entry, is_new] = is_own_.try_emplace(code, false);
    if (is_new) {
      const std::string file = utf8_of(code->co_filename);
      entry->second = std::ranges::none_of(words().libraries, [&](const std::string& part) {
        return file.find(part) != std::string::npos;
      });
    }
    return entry->second;
  }

  std::unordered_map<PyCodeObject*, bool> is_own_;
  std::map<std::pair<void*, int>, std::string> texts_;
};

// Sums by stack first, then by line. An addition reads each frame of a stack once or twice; memory
// is proportional to the number of stacks.
class StackSums final : public CallSiteSums {
 public:
  // The most stacks that are distinguished. Blocks of further ones count as unknown.
  static constexpr std::size_t kMaxStacks = std::size_t{1} << 16;

  void add(std::size_t bytes, const CallContext& context) override {
    torch::CapturedTraceback* stack = traceback_of(context);
    if (stack == nullptr) {
      unknown_.add({bytes, 1});
      return;
    }
    const PythonFrames* frames = &python_frames_of(*stack);
    auto found = stacks_.find(frames);
    if (found == stacks_.end()) {
      if (stacks_.size() == kMaxStacks) {
        unknown_.add({bytes, 1});
        return;
      }
      found = stacks_.emplace(frames, Stack{context, {}}).first;
    }
    found->second.total.add({bytes, 1});
  }

  CallSites name() override {
    if (Py_IsInitialized() == 0) {
      return {};
    }
    const py::gil_scoped_acquire acquire;
    // Preserves an error that propagates through the caller.
    const py::error_scope kept;
    Lines lines;
    std::unordered_map<std::string, BlockTotal> totals;
    for (const auto& [frames, stack] : stacks_) {
      totals[lines.line_of(*frames)].add(stack.total);
    }
    if (totals.size() == 1 && totals.contains(words().no_line)) {
      return {};
    }
    return largest_of(totals);
  }

 private:
  struct Stack {
    CallContext context;  // owns the frames, which own their code
    BlockTotal total;
  };
  struct Hash {
    std::size_t operator()(const PythonFrames* frames) const {
      std::size_t hash = frames->size();
      for (const auto& frame : *frames) {
        hash ^= reinterpret_cast<std::size_t>(frame.code) + static_cast<std::size_t>(frame.lasti);
        hash *= 0x9E3779B97F4A7C15;
        hash ^= hash >> 32;
      }
      return hash;
    }
  };
  struct Equal {
    bool operator()(const PythonFrames* a, const PythonFrames* b) const {
      return std::ranges::equal(*a, *b, [](const auto& one, const auto& other) {
        return one.code == other.code && one.lasti == other.lasti;
      });
    }
  };

  CallSites largest_of(const std::unordered_map<std::string, BlockTotal>& totals) const {
    CallSites sites;
    sites.unknown = unknown_;
    for (const auto& [line, total] : totals) {
      sites.largest.push_back({line, total});
    }
    std::ranges::sort(sites.largest, std::ranges::greater{},
                      [](const CallSite& site) { return site.total.bytes; });
    while (sites.largest.size() > CallSites::kLargest) {
      sites.others.add(sites.largest.back().total);
      sites.largest.pop_back();
      ++sites.other_lines;
    }
    return sites;
  }

  std::unordered_map<const PythonFrames*, Stack, Hash, Equal> stacks_;
  BlockTotal unknown_;
};

void start_naming(std::vector<std::string> libraries, std::string no_line) {
  words() = {std::move(libraries), std::move(no_line)};
  set_call_site_sums(
      []() -> std::unique_ptr<CallSiteSums> { return std::make_unique<StackSums>(); });
}

}  // namespace

void bind_call_sites(py::module_& module) {
  module.def("name_call_sites", &start_naming, py::arg("libraries"), py::arg("no_line"));
}

}  // namespace ferro
