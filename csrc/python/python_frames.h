// The Python frames of a context that PyTorch gathered.
//
// PyTorch's own `symbolize` gives names to C++ frames too, which takes seconds. It keeps the frames
// private, and has no other way to the line of one, or to give a stack other frames.
#pragma once

#include "ferro/core/types/observer.h"

#include <torch/csrc/profiler/combined_traceback.h>

#include <vector>

namespace ferro {

// Innermost first. The context owns the code objects while it lives.
using PythonFrames = std::vector<torch::CapturedTraceback::PyFrame>;

// Null for a null context, and for one of another kind.
torch::CapturedTraceback* traceback_of(const CallContext& context);
PythonFrames& python_frames_of(torch::CapturedTraceback& context);
// Whoever gathered them, and lets go of the code objects. Null while there are none.
torch::CapturedTraceback::Python*& gatherer_of(torch::CapturedTraceback& context);

}  // namespace ferro
