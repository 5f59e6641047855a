#include "sim/streams/durations.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace ferro::sim {
namespace {

// The shares of a card's figures that programs reach. On an H100 a streaming copy reached 2,844 of
// 3,350 GB/s, and a large product of bfloat16 896 of 989 TFLOP/s; products of usual sizes reach
// less.
constexpr double kMemoryShare = 0.85;
constexpr double kProductShare = 0.8;

// The least duration of a kernel, copy or fill: on an H200 a graph of 437 consecutive nodes that
// moves 0.4 GB takes 919 us.
constexpr double kStart = 1900;
// GB/s. Copies of pageable memory go through a buffer of the driver.
constexpr double kPageable = 10;
// Products of floats without TF32, measured in convolutions on an H200: 36 of 67 TFLOP/s, and the
// least duration of one.
constexpr double kSingleProductShare = 0.54;
constexpr double kSingleProductStart = 7000;
// From the end of the work before a host function to the end of the function.
constexpr double kHostCall = 10000;

double element_bytes(Precision precision) {
  return precision == Precision::kHalf ? 2 : precision == Precision::kSingle ? 4 : 8;
}

// The speed that products reach.
double teraflops(const CardSpeed& speed, Precision precision) {
  return precision == Precision::kHalf     ? speed.fp16 * kProductShare
         : precision == Precision::kSingle ? speed.fp32 * kSingleProductShare
                                           : speed.fp64 * kProductShare;
}

// The duration of reads and writes of so many bytes.
double in_memory(const Card& card, double bytes) {
  return bytes / (card.speed.memory * kMemoryShare);
}

double copying(const Card& card, const Copy& copy) {
  const double bytes = static_cast<double>(copy.width) * static_cast<double>(copy.height);
  if (copy.peers) {
    return bytes / card.speed.peer_link;
  }
  if (copy.to_device && copy.from_device) {
    return in_memory(card, 2 * bytes);
  }
  return bytes / (copy.pageable ? std::min(kPageable, card.speed.host_link) : card.speed.host_link);
}

// Bytes of a thread, from kernels in full and LoRA-like training, generation, a mixture of experts
// and convolutions on an H200: their time less `kStart`, divided by their threads, as if all of it
// were memory traffic. The figure of attention depends on the length: 1,800 to 7,900. Those of
// batch norms, which have some threads for each channel, depend on the images: 800 to 21,000 and
// 400 to 9,500.
constexpr std::array<std::pair<std::string_view, double>, 11> kBytesOfThread = {{
    {"multi_tensor_apply_kernel", 815},
    {"flash_fwd", 4000},
    {"flash_bwd_dq_dk_dv", 4000},
    {"cunn_SoftMaxForward", 410},
    {"cunn_SoftMaxBackward", 1070},
    {"CatArrayBatchedCopyI", 750},  // not the vectorized one
    {"indexFuncLargeIndex", 960},
    {"im2col_kernel", 110},
    {"col2im_kernel", 240},
    {"batch_norm_backward_kernel", 5100},
    {"batch_norm_collect_statistics_kernel", 2400},
}};

Nanoseconds rounded(double nanoseconds) { return std::llround(nanoseconds); }

}  // namespace

double thread_bytes(std::string_view kernel) {
  for (const auto& [part, bytes] : kBytesOfThread) {
    if (kernel.find(part) != std::string_view::npos) {
      return bytes;
    }
  }
  return kThreadBytes;
}

Nanoseconds kernel_duration(const Card& card, std::uint64_t threads, double bytes_of_thread) {
  return rounded(kStart + in_memory(card, static_cast<double>(threads) * bytes_of_thread));
}

Nanoseconds product_duration(const Card& card, const Product& product) {
  const auto m = static_cast<double>(product.m);
  const auto n = static_cast<double>(product.n);
  const auto k = static_cast<double>(product.k);
  const auto batch = static_cast<double>(product.batch);
  const double operations = 2 * m * n * k * batch;
  const double bytes = (m * k + k * n + m * n) * batch * element_bytes(product.precision);
  const double kiloflops_a_nanosecond = teraflops(card.speed, product.precision);
  const double start = product.precision == Precision::kSingle ? kSingleProductStart : kStart;
  return rounded(start +
                 std::max(operations / (1000 * kiloflops_a_nanosecond), in_memory(card, bytes)));
}

// On the host of an H200, torch.mm took 20 us in floats and 17 in bfloat16 for each of the 24
// products of a convolutional network, in turn. With the simulated GPU the same calls take 9 us.
// Other kernels take equally long on both.
double product_host_microseconds(const Product& product) {
  return product.precision == Precision::kSingle ? 11 : 8;
}

Nanoseconds duration_of(const Card& card, const Work& work) {
  if (const auto* kernel = std::get_if<Kernel>(&work)) {
    return kernel->duration;
  }
  if (const auto* copy = std::get_if<Copy>(&work)) {
    return rounded(kStart + copying(card, *copy));
  }
  if (const auto* fill = std::get_if<Fill>(&work)) {
    const auto elements = static_cast<double>(fill->width) * static_cast<double>(fill->height);
    return rounded(kStart + in_memory(card, elements * static_cast<double>(fill->element)));
  }
  const HostCall* call = std::get_if<HostCall>(&work);
  return call != nullptr && !call->waits ? rounded(kHostCall) : 0;
}

}  // namespace ferro::sim
