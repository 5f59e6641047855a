#include "sim/libraries/cudnn/recurrent_sizes.h"

#include "ferro/base/bytes.h"

#include <algorithm>

// cuDNN does not say what the parts of its memory hold. Comments name what has the size of a part.
namespace ferro::sim {
namespace {

std::int64_t gates_of(const RecurrentShape& s) {
  return s.cell == RecurrentCell::kLstm ? 4 : s.cell == RecurrentCell::kGru ? 3 : 1;
}

// The number of inputs of one layer in one direction.
std::int64_t inputs_of(const RecurrentShape& s, std::int64_t layer) {
  return layer / s.directions == 0 ? s.inputs : s.projected * s.directions;
}

bool has_projection(const RecurrentShape& s) { return s.projected != s.hidden; }

std::int64_t matrices_of(const RecurrentShape& s, std::int64_t layer) {
  return gates_of(s) * s.hidden * (inputs_of(s, layer) + s.projected) +
         (has_projection(s) ? s.projected * s.hidden : 0);
}

std::int64_t all_matrices_of(const RecurrentShape& s) {
  std::int64_t elements = 0;
  for (std::int64_t layer = 0; layer < s.layers * s.directions; ++layer) {
    elements += matrices_of(s, layer);
  }
  return elements;
}

// Each part of a workspace begins at a multiple of 32 bytes.
std::int64_t aligned(std::int64_t bytes) { return round_up(bytes, 32); }

constexpr std::int64_t kHead = 256;  // before all parts

// Bytes of one vector of hidden units for each of the following.
struct Vectors {
  Vectors(const RecurrentShape& s, const Sequences& q)
      : rows(q.rows * s.hidden * s.element),
        states(s.layers * s.directions * q.count * s.hidden * s.element) {}

  std::int64_t rows;    // of the sequences
  std::int64_t states;  // of all layers in all directions: one row of each sequence
};

bool is_persistent(const RecurrentShape& s) {
  return s.algorithm != RecurrentAlgorithm::kStandard && !s.is_bfloat;
}

// What a cell keeps for the backward pass: the gates, in a GRU also those of the state alone.
std::int64_t kept_gates(const RecurrentShape& s) {
  return s.cell == RecurrentCell::kGru ? 6 : gates_of(s);
}

// What both passes need.
std::int64_t common_parts(const RecurrentShape& s, const Sequences& q) {
  constexpr std::int64_t kProducts = 8 << 20;  // for the matrix products of a layer
  std::int64_t bytes = kHead + s.layers * s.directions * kProducts;
  bytes += aligned(all_matrices_of(s) * s.element);  // a copy of the weights
  if (has_projection(s)) bytes += aligned(s.directions * Vectors(s, q).rows);
  if (s.padded) bytes += aligned(8 * q.count);  // two integers each
  return bytes;
}

// Copies without padding: of the input and the output, of the first and the last states.
std::int64_t unpadded_copies(const RecurrentShape& s, const Sequences& q) {
  if (!s.padded) return 0;
  const std::int64_t places = q.steps * q.count * s.element;
  const std::int64_t states = s.layers * s.directions * q.count * s.projected * s.element;
  return aligned(places * s.inputs) + aligned(places * s.projected * s.directions) +
         2 * aligned(states) +
         (s.cell == RecurrentCell::kLstm ? 2 * aligned(Vectors(s, q).states) : 0);
}

// `vectors` for each layer, besides the state of an LSTM's cells. Two directions need more.
std::int64_t running_states(const RecurrentShape& s, const Sequences& q, std::int64_t vectors) {
  const std::int64_t states = Vectors(s, q).states;
  std::int64_t bytes = aligned(vectors * states);
  if (s.cell == RecurrentCell::kLstm) bytes += aligned(2 * states);
  if (s.directions == 2) bytes += aligned((is_persistent(s) ? 1 : 2) * states);
  return bytes;
}

std::int64_t forward_parts(const RecurrentShape& s, const Sequences& q) {
  const std::int64_t outputs = s.directions * Vectors(s, q).rows;
  std::int64_t bytes = running_states(s, q, is_persistent(s) ? 2 : gates_of(s));
  // The input's share of the gates, in one direction of 256 steps at a time.
  std::int64_t rows = q.rows;
  if (s.directions == 1 && !is_persistent(s)) rows = std::min(rows, 256 * q.count);
  bytes += aligned(gates_of(s) * rows * s.directions * s.hidden * s.element);
  // The outputs of the layer below, and of this one.
  if (s.directions == 2) {
    bytes += aligned(2 * outputs);
  } else if (s.dropout) {
    bytes += aligned(outputs);
  }
  if (is_persistent(s)) bytes += aligned(4 * gates_of(s) * Vectors(s, q).rows);
  return bytes;
}

// In one direction the layers run at once, each some steps behind the layer above it.
std::int64_t rows_at_once(const RecurrentShape& s, const Sequences& q) {
  if (s.layers == 1) return q.rows;
  std::int64_t steps = 2;
  if (q.count == 1) {
    steps = 32;
  } else if (q.count <= 8) {
    steps = 16;
  } else if (q.count <= 16 || q.steps >= 128) {
    steps = 8;
  } else if (q.count <= 96) {
    steps = 4;
  }
  return std::min(q.rows, (std::max<std::int64_t>(steps, 8) + steps * s.layers) * q.count);
}

std::int64_t backward_parts(const RecurrentShape& s, const Sequences& q) {
  const std::int64_t rows = Vectors(s, q).rows;
  std::int64_t bytes = running_states(s, q, is_persistent(s) ? 2 : 1);
  // Gradients of the widest input of a layer.
  const std::int64_t width = std::max(s.inputs, s.hidden);
  bytes += aligned((s.directions == 2 ? 4 : 1) * q.rows * width * s.element);
  // Gradients between the layers.
  if (s.directions == 1 && !is_persistent(s)) {
    bytes += aligned(rows_at_once(s, q) * s.hidden * s.element);
  } else {
    bytes += aligned((s.layers == 1 ? 1 : 2) * s.directions * rows);
  }
  if (is_persistent(s)) {
    bytes += aligned(kept_gates(s) * rows);
    const bool is_static = s.algorithm == RecurrentAlgorithm::kPersistStatic;
    const std::int64_t least = is_static ? s.hidden * (4864 + 2 * q.count) : 0;
    bytes += aligned(std::max(8 * rows, least));
  }
  return bytes;
}

}  // namespace

std::size_t weight_bytes(const RecurrentShape& s) {
  const std::int64_t biases = s.layers * s.directions * s.biases * gates_of(s) * s.hidden;
  return static_cast<std::size_t>((all_matrices_of(s) + biases) * s.element);
}

WeightPlace weight_place(const RecurrentShape& s, std::int64_t layer, std::int64_t part) {
  std::int64_t before = 0;
  for (std::int64_t other = 0; other < layer; ++other) before += matrices_of(s, other);
  const std::int64_t gates = gates_of(s);
  const std::int64_t inputs = inputs_of(s, layer);
  WeightPlace place;
  if (part == 2 * gates) {
    place.rows = s.projected;
    place.columns = s.hidden;
    place.matrix_offset = (before + gates * s.hidden * (inputs + s.projected)) * s.element;
    return place;
  }
  const bool of_input = part < gates;
  place.rows = s.hidden;
  place.columns = of_input ? inputs : s.projected;
  place.matrix_offset = of_input
                            ? part * s.hidden * inputs
                            : gates * s.hidden * inputs + (part - gates) * s.hidden * s.projected;
  place.matrix_offset = (before + place.matrix_offset) * s.element;
  if (s.biases > 0) {
    const std::int64_t vectors = s.biases * gates;
    place.bias_offset =
        (all_matrices_of(s) + (layer * vectors + part % vectors) * s.hidden) * s.element;
  }
  return place;
}

bool has_projection_kernels(const RecurrentShape& s) {
  return !has_projection(s) || s.algorithm == RecurrentAlgorithm::kStandard;
}

bool has_recurrent_kernels(const RecurrentShape& s) {
  const bool gated = s.cell != RecurrentCell::kPlain;
  switch (s.algorithm) {
    case RecurrentAlgorithm::kStandard:
      return true;
    case RecurrentAlgorithm::kPersistStatic:
      return s.biases == 2 && s.element < 8 && s.hidden <= (gated ? 1536 : 2560);
    case RecurrentAlgorithm::kPersistDynamic:
      return s.biases == 2;
    case RecurrentAlgorithm::kPersistSmall:
      return s.biases == 2 && s.element < 8 && s.hidden <= (gated ? 192 : 384);
  }
  return false;
}

std::size_t recurrent_workspace(const RecurrentShape& s, const Sequences& q, bool training) {
  const std::int64_t copies = unpadded_copies(s, q);
  std::int64_t bytes = forward_parts(s, q) + copies;
  // The backward pass copies the gradients too. It gets the same workspace.
  if (training) bytes = std::max(bytes, backward_parts(s, q) + 2 * copies);
  return static_cast<std::size_t>(common_parts(s, q) + bytes);
}

std::size_t recurrent_reserve(const RecurrentShape& s, const Sequences& q) {
  const std::int64_t rows = Vectors(s, q).rows * s.directions;
  std::int64_t bytes = kHead + aligned(kept_gates(s) * s.layers * rows);
  if (s.cell == RecurrentCell::kLstm) bytes += aligned(s.layers * rows);  // the cells' states
  bytes += aligned((s.layers - 1) * rows);                                // layers' outputs
  if (has_projection(s)) {
    bytes += aligned(s.layers * rows);
    bytes += aligned(s.layers * s.directions * q.rows * s.projected * s.element);
  }
  if (s.dropout) {
    // One bit for each output of a layer that another one follows, padding included.
    const std::int64_t kept = q.steps * q.count * s.directions * s.projected;
    bytes += (s.layers - 1) * s.directions * aligned((kept + 7) / 8);
  }
  return static_cast<std::size_t>(bytes);
}

}  // namespace ferro::sim
