#include "python/python_frames.h"

namespace ferro {
namespace {

// An explicit instantiation may name private members.
template <auto kFrames, auto kGatherer>
struct Access {
  friend PythonFrames& frames_in(torch::CapturedTraceback& context) { return context.*kFrames; }
  friend torch::CapturedTraceback::Python*& gatherer_in(torch::CapturedTraceback& context) {
    return context.*kGatherer;
  }
};
PythonFrames& frames_in(torch::CapturedTraceback& context);
torch::CapturedTraceback::Python*& gatherer_in(torch::CapturedTraceback& context);
template struct Access<&torch::CapturedTraceback::frames_, &torch::CapturedTraceback::python_>;

}  // namespace

// The contexts of a recorder have this base class (History::gather).
torch::CapturedTraceback* traceback_of(const CallContext& context) {
  return dynamic_cast<torch::CapturedTraceback*>(static_cast<c10::GatheredContext*>(context.get()));
}

PythonFrames& python_frames_of(torch::CapturedTraceback& context) { return frames_in(context); }

torch::CapturedTraceback::Python*& gatherer_of(torch::CapturedTraceback& context) {
  return gatherer_in(context);
}

}  // namespace ferro
