// The memory of recurrent networks: as cuDNN 9.19 answered on an H200.
#include "sim/libraries/cudnn/recurrent_sizes.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace ferro::sim {
namespace sim_recurrent_sizes_test {

// A question to cuDNN, with its own numbers for algorithm, cell and type, and its answer in bytes.
struct Answer {
  int algorithm, cell, bidirectional, type;
  std::int64_t biases, inputs, hidden, projected, layers;
  bool dropout, padded, training;
  std::int64_t steps, sequences, rows;
  std::int64_t workspace, reserve, weights;  // a workspace of -1: not supported
};

constexpr Answer kAnswers[] = {
#include "recurrent_sizes.inc"
};

RecurrentShape shape_of(const Answer& answer) {
  constexpr int kDouble = 1;
  constexpr int kFloat = 0;
  constexpr int kBfloat = 9;
  constexpr RecurrentCell kCells[] = {RecurrentCell::kPlain, RecurrentCell::kPlain,
                                      RecurrentCell::kLstm, RecurrentCell::kGru};
  RecurrentShape shape;
  shape.cell = kCells[answer.cell];
  shape.algorithm = static_cast<RecurrentAlgorithm>(answer.algorithm);
  shape.hidden = answer.hidden;
  shape.inputs = answer.inputs;
  shape.projected = answer.projected;
  shape.layers = answer.layers;
  shape.directions = 1 + answer.bidirectional;
  shape.biases = answer.biases;
  shape.element = answer.type == kDouble ? 8 : answer.type == kFloat ? 4 : 2;
  shape.is_bfloat = answer.type == kBfloat;
  shape.dropout = answer.dropout;
  shape.padded = answer.padded;
  return shape;
}

TEST(RecurrentSizes, EqualTheAnswersOfCudnn) {
  int line = 0;
  for (const Answer& answer : kAnswers) {
    SCOPED_TRACE("line " + std::to_string(++line) + " of recurrent_sizes.inc");
    const RecurrentShape shape = shape_of(answer);
    const bool supported = has_projection_kernels(shape) && has_recurrent_kernels(shape);
    EXPECT_EQ(supported, answer.workspace >= 0);
    if (answer.workspace < 0) continue;
    const Sequences sequences{answer.steps, answer.sequences, answer.rows};
    EXPECT_EQ(recurrent_workspace(shape, sequences, answer.training), answer.workspace);
    EXPECT_EQ(answer.training ? recurrent_reserve(shape, sequences) : 0, answer.reserve);
    EXPECT_EQ(weight_bytes(shape), answer.weights);
  }
}

// The weights fill the memory that cuDNN asks for: matrices first, then biases, in order.
TEST(RecurrentSizes, PlacesOfWeightsFollowEachOther) {
  for (const std::int64_t projected : {6, 4}) {
    RecurrentShape shape;
    shape.cell = RecurrentCell::kLstm;
    shape.hidden = 6;
    shape.inputs = 5;
    shape.projected = projected;
    shape.layers = 2;
    shape.directions = 2;
    const std::int64_t matrices = projected == shape.hidden ? 8 : 9;
    std::int64_t next = 0;
    for (std::int64_t layer = 0; layer < 4; ++layer) {
      for (std::int64_t part = 0; part < matrices; ++part) {
        const WeightPlace place = weight_place(shape, layer, part);
        EXPECT_EQ(place.matrix_offset, next);
        next += place.rows * place.columns * shape.element;
      }
    }
    for (std::int64_t layer = 0; layer < 4; ++layer) {
      for (std::int64_t part = 0; part < 8; ++part) {
        const WeightPlace place = weight_place(shape, layer, part);
        EXPECT_EQ(place.bias_offset, next);
        next += place.rows * shape.element;
      }
    }
    EXPECT_EQ(weight_bytes(shape), next);
  }
}

}  // namespace sim_recurrent_sizes_test
}  // namespace ferro::sim
