// The random numbers of PyTorch's CUDA kernels, computed on the host.
//
// A kernel has a thread for each element up to as many as the card runs at once, and more elements
// are drawn in rounds. Each thread takes its part of a Philox sequence, so the numbers depend on the
// generator's seed and offset, on the number of elements and on the card.
//
// All functions fill `flat`, a contiguous host tensor of one dimension, whose elements are in the
// order in which the kernel numbers them. They advance the generator's offset like the kernel's
// launch. They are thread-safe for different generators and tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace ferro::values {

// The state of a device's generator, and what of the card decides a launch.
struct CardGenerator {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;  // a multiple of 4
  std::uint32_t multiprocessors = 0;
  std::uint32_t threads = 0;  // that a multiprocessor runs at once
};

void draw_uniform(CardGenerator& generator, const at::Tensor& flat, double from, double to);
void draw_normal(CardGenerator& generator, const at::Tensor& flat, double mean, double std);
void draw_log_normal(CardGenerator& generator, const at::Tensor& flat, double mean, double std);
void draw_cauchy(CardGenerator& generator, const at::Tensor& flat, double median, double sigma);
void draw_exponential(CardGenerator& generator, const at::Tensor& flat, double lambda);
void draw_geometric(CardGenerator& generator, const at::Tensor& flat, double p);
void draw_bernoulli(CardGenerator& generator, const at::Tensor& flat, double p);
// Integers of the type's whole range; of floating-point types, those that it has exactly.
void draw_integers(CardGenerator& generator, const at::Tensor& flat);
// `range` integers from `base` on; none: all of 64 bits.
void draw_integers(CardGenerator& generator, const at::Tensor& flat,
                   std::optional<std::uint64_t> range, std::int64_t base);

// Ones with the probabilities of the other tensor, which is like `flat` and of double-precision
// numbers if `flat` is, else of single-precision ones.
void draw_bernoulli(CardGenerator& generator, const at::Tensor& flat,
                    const at::Tensor& probabilities);
// A permutation of the integers below the number of elements.
void draw_permutation(CardGenerator& generator, const at::Tensor& flat);
// Truth values with the probability `p`. `vector`: the number of elements that a thread loads at
// once; 1 numbers the elements like the other kernels. `is_double`: they mask such numbers.
void draw_dropout(CardGenerator& generator, const at::Tensor& flat, double p, bool is_double,
                  std::int64_t vector);
// Slopes between two numbers, in the order of indices.
void draw_slopes(CardGenerator& generator, const at::Tensor& flat, double lower, double upper);
// Numbers of which each row has one for each sample of torch.multinomial with replacement.
void draw_samples(CardGenerator& generator, const at::Tensor& flat, std::int64_t rows);

}  // namespace ferro::values
