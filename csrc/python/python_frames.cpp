#include "python/python_frames.h"

namespace ferro {
namespace {

// An explicit instantiation may name what is private.
template <auto kMember>
struct Access {
  friend PythonFrames& frames_in(torch::CapturedTraceback& context) { return context.*kMember; }
};
PythonFrames& frames_in(torch::CapturedTraceback& context);
template struct Access<&torch::CapturedTraceback::frames_>;

}  // namespace

PythonFrames& python_frames_of(torch::CapturedTraceback& context) { return frames_in(context); }

}  // namespace ferro
