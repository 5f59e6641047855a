// The sizes of the memory of cuDNN's recurrent networks. Pure functions of shapes, in bytes.
//
// They equal the answers of cuDNN 9.19 on an H200 to 83,000 questions: all cells, algorithms, types,
// biases and layouts, with and without padding, dropout and projections. 1,524 of the answers are in
// tests/cpp/unit/sim/recurrent_sizes.inc.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ferro::sim {

enum class RecurrentCell { kPlain, kLstm, kGru };

// Those after the first keep the weights on the multiprocessors. cuDNN 9.19 has no such kernels for
// bfloat16.
enum class RecurrentAlgorithm { kStandard, kPersistStatic, kPersistDynamic, kPersistSmall };

struct RecurrentShape {
  RecurrentCell cell = RecurrentCell::kPlain;
  RecurrentAlgorithm algorithm = RecurrentAlgorithm::kStandard;
  std::int64_t hidden = 0;
  std::int64_t inputs = 0;
  std::int64_t projected = 0;  // outputs of a projection, equal to `hidden` without one
  std::int64_t layers = 1;
  std::int64_t directions = 1;
  std::int64_t biases = 2;   // vectors of each gate
  std::int64_t element = 4;  // bytes
  bool is_bfloat = false;    // of the two types of 16 bits: bfloat16
  bool dropout = false;      // at a rate above 0
  bool padded = false;       // the caller's sequences may be padded
};

struct Sequences {
  std::int64_t steps = 0;  // of the longest
  std::int64_t count = 0;
  std::int64_t rows = 0;  // the sum of their lengths
};

// Where a matrix or a bias of one gate lies among all weights, in bytes. `part` counts the matrices
// for the layer's input, then those for its state, then the projection's.
struct WeightPlace {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t matrix_offset = 0;
  std::int64_t bias_offset = -1;  // negative: there is none
};

std::size_t weight_bytes(const RecurrentShape& shape);
// `layer` counts the directions too: 2 * layer + direction where there are two.
WeightPlace weight_place(const RecurrentShape& shape, std::int64_t layer, std::int64_t part);

// False for shapes that cuDNN has no kernels for.
bool has_projection_kernels(const RecurrentShape& shape);
bool has_recurrent_kernels(const RecurrentShape& shape);

std::size_t recurrent_workspace(const RecurrentShape& shape, const Sequences& sequences,
                                bool training);
// What training keeps for the backward pass.
std::size_t recurrent_reserve(const RecurrentShape& shape, const Sequences& sequences);

}  // namespace ferro::sim
