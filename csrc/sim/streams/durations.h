// The durations of operations on a card, for clock time.
//
// Pure functions of the card's figures and of the shares of them that programs reach. The
// model assumes that no other operation runs at the same time. The bytes that a kernel reads and
// writes are unknown, and are estimated from its number of threads.
#pragma once

#include "sim/settings/config.h"
#include "sim/streams/work.h"

#include <cstdint>
#include <string_view>

namespace ferro::sim {

// The precision of the elements of a matrix.
enum class Precision : std::uint8_t { kHalf, kSingle, kDouble };

// `batch` products of an `m` x `k` by a `k` x `n` matrix.
struct Product {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t batch = 1;
  Precision precision = Precision::kHalf;
};

// The name of the kernel that stands for a product. Its arguments are a `Product` and, in the
// library's launches, the addresses of both operands, the result and the workspace.
inline constexpr std::string_view kProductKernel = "ferro_sim_matrix_product";
inline constexpr std::size_t kProductPointers = 4;
// Its first arguments, up to the operands: the kernel only reads them.
inline constexpr std::size_t kProductOperands = 3;

// The bytes that a thread of most kernels reads and writes: 17 to 81 for PyTorch's elementwise
// kernels on an H200, depending on the workload.
inline constexpr double kThreadBytes = 40;

// The bytes of a thread of the kernel with this name, mangled or not: `kThreadBytes`, or a larger
// figure for kernels whose threads do more.
double thread_bytes(std::string_view kernel);

// The duration of a kernel with so many threads.
Nanoseconds kernel_duration(const Card& card, std::uint64_t threads,
                            double bytes_of_thread = kThreadBytes);
// The duration of its arithmetic or of its memory accesses, whichever is longer.
Nanoseconds product_duration(const Card& card, const Product& product);
// The host time of the real library for a product, without its launch, in microseconds.
double product_host_microseconds(const Product& product);
// The duration of any work.
Nanoseconds duration_of(const Card& card, const Work& work);

}  // namespace ferro::sim
