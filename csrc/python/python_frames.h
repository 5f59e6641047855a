// The Python frames of a context that PyTorch gathered.
//
// PyTorch's own `symbolize` names C++ frames too, which takes seconds. PyTorch keeps the frames
// private, and has no other way to find a frame's line or to replace the frames of a stack.
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
// The object that gathered the frames and releases their code objects. Null while there are none.
torch::CapturedTraceback::Python*& gatherer_of(torch::CapturedTraceback& context);

}  // namespace ferro
