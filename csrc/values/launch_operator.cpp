// The operator that stands for a kernel from outside of PyTorch's operators, after its launch. It
// computes nothing, so that what the kernel writes becomes unknown, with an identity that follows
// from what it reads.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace ferro::values {
namespace {

void do_nothing(c10::string_view, at::TensorList, at::TensorList) {}

TORCH_LIBRARY_FRAGMENT(ferro_sim, m) {
  m.def("launch(str kernel, Tensor[] read, Tensor(a!)[] written) -> ()");
}

TORCH_LIBRARY_IMPL(ferro_sim, CUDA, m) { m.impl("launch", &do_nothing); }

}  // namespace
}  // namespace ferro::values
