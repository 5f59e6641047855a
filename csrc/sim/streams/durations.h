// How long operations take on a card, for clock time.
//
// Pure functions of the card's figures and of shares of them that programs reach. An operation is
// taken to have the card for itself. What a kernel reads and writes is unknown, so its threads say
// how much that is.
#pragma once

#include "sim/settings/config.h"
#include "sim/streams/work.h"

#include <cstdint>
#include <string_view>

namespace ferro::sim {

// Of the elements of a matrix.
enum class Precision : std::uint8_t { kHalf, kSingle, kTwice };

// `batch` products of an `m` x `k` by a `k` x `n` matrix.
struct Product {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t batch = 1;
  Precision precision = Precision::kHalf;
};

// The name of the kernel that stands for a product, and has a `Product` as its first argument. In
// the library's launches the addresses of both operands, the result and the workspace follow.
inline constexpr std::string_view kProductKernel = "ferro_sim_matrix_product";
inline constexpr std::size_t kProductPointers = 4;

// What a thread of most kernels reads and writes, in bytes: elementwise ones of PyTorch took 17 to
// 81 on an H200, by workload.
inline constexpr double kThreadBytes = 40;

// What a thread of the kernel of that name, mangled or not, takes: `kThreadBytes`, or the figure of
// one whose threads each do much.
double thread_bytes(std::string_view kernel);

// Of a kernel with so many threads.
Nanoseconds kernel_duration(const Card& card, std::uint64_t threads,
                            double bytes_of_thread = kThreadBytes);
// By arithmetic or by memory, whichever takes longer.
Nanoseconds product_duration(const Card& card, const Product& product);
// What the library, which is not here, takes of the host for a product beside its launch, in
// microseconds.
double product_host_microseconds(const Product& product);
// Of any work.
Nanoseconds duration_of(const Card& card, const Work& work);

}  // namespace ferro::sim
