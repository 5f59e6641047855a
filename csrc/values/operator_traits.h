// An operator's effects on memory, from its schema and, for a few operators, from its name.
//
// Pure functions and plain values.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ferro::values {

enum class Kind : std::uint8_t {
  kView,       // returns a view
  kNothing,    // sizes, storages: computes no value
  kReads,      // returns a value to the host
  kUnset,      // returns uninitialised memory
  kCopy,       // the driver moves the bytes, unless they are converted
  kPlain,      // a kernel computes the results, whose sizes do not depend on values
  kDataSized,  // the sizes of the results depend on values
  kTransfer,   // between ranks: like kElsewhere, unless the library reports what is known
  kElsewhere,  // of a library whose host version may differ: makes its results unknown
};

// Which rows the results of an operator of `kDataSized` have.
enum class Rows : std::uint8_t {
  kNotZero,          // one for each element that is not zero
  kDistinct,         // elements or slices that differ from each other
  kDistinctOrTrue,   // the same; of booleans the device counts the true ones instead
  kRuns,             // elements or slices that differ from the one before
  kBoxes,            // boxes that do not overlap a better one
  kColumns,          // indices of a sparse tensor, in columns
  kDistinctColumns,  // the same, each of them once
  kProduct,          // elements of a product of two sparse matrices
  kSum,              // the same of a sum
};

// Results that are positions along a dimension of the first argument.
struct Positions {
  // The place of the dimension among the arguments; none: the last dimension.
  std::optional<std::size_t> dimension_argument;
};

struct OperatorTraits {
  std::string name;  // "aten::add.Tensor"
  Kind kind = Kind::kPlain;
  std::size_t arguments = 0;
  std::size_t returns = 0;
  // Places of arguments that are written to.
  std::vector<std::size_t> written;
  // Of these, arguments whose earlier contents do not matter.
  std::vector<std::size_t> overwritten;
  bool overwrites(std::size_t place) const {
    return std::find(overwritten.begin(), overwritten.end(), place) != overwritten.end();
  }
  // The place of the factor of its first argument. If it is zero, that argument is not read.
  std::optional<std::size_t> factor;
  // Its inputs are the same after it, unless it overwrites a list.
  bool leaves_inputs = false;
  // By place among the returns: is it one of these arguments?
  std::vector<bool> return_is_argument;
  // Its CPU kernel sorts rows in place, also where they share elements.
  bool sorts_in_place = false;
  // Draws random numbers; takes a generator.
  bool random = false;
  bool generator = false;
  // If it does, the places of what makes its results the same whatever it draws: false for whether it
  // trains, 0 or 1 for a probability.
  std::optional<std::size_t> trains;
  std::optional<std::size_t> probability;
  // Has a CPU kernel.
  bool computable = false;
  // Costs more than a few passes over its inputs and results: products, convolutions, attention.
  bool costly = false;
  Rows rows = Rows::kNotZero;
  // The place of the dimension along which it compares slices, if there is one.
  std::optional<int> unique_along;
  // Reads back results of its kernels that determine no size, and fails if a search finds nothing.
  bool searches = false;
  // May give truth values or integers of floating-point numbers.
  bool tests = false;
  // Gives a mask of numbers: false or true for each of them.
  bool compares = false;
  // Asks which numbers are not zero, and follows from that alone.
  bool tests_truth = false;
  // Compares two arguments for equality, or tests whether numbers are none.
  bool tests_equality = false;
  bool tests_nan = false;
  // Checks the program's arguments: unknown ones pass.
  bool assumes_true = false;
  // The place of the least size of its result, which a larger number in its input exceeds.
  std::optional<std::size_t> least_size;
  // Reads arguments back, and uses them only to check them.
  bool reads_to_check = false;
  // Its first argument tells whether a decomposition succeeded: zero, unless it is known.
  bool checks_success = false;
  // Computes with parts of its results on the host (MAGMA), which determine no size.
  bool computes_on_host = false;
  // Of the last result.
  std::optional<Positions> positions;
  // Zeros arguments that were unknown before it, instead of keeping their contents: what the program
  // reads next is the kernel's result.
  bool zeroes_unknown = false;
  // May give a tensor's storage more memory.
  bool resizes = false;
  // Each result of a list follows from the elements at its place in lists, and from what is no list.
  bool by_element = false;
  // By place among the arguments: is it a list?
  std::vector<bool> argument_is_list;
  // A hash of the name.
  std::uint64_t hash = 0;
  // Places of statistics that a normalization updates and does not depend on.
  std::vector<std::size_t> statistics;
  // Its results have the numbers of its inputs, or ones that are as low or as high.
  bool passes_numbers = false;
  // The same, and positive numbers stay positive.
  bool keeps_sign = false;
  // Its results are positive, whatever the inputs.
  bool gives_positive = false;
  // Its results are finite, whatever the inputs.
  bool gives_finite = false;
  // Where an element of its inputs is infinite, those of its results may be.
  bool may_keep_infinities = false;
  // Each element of its results follows from one element of each input, as expanded to its sizes; if it
  // moves elements, of each selector.
  bool works_by_element = false;
  // Its results consist of elements of its inputs and of numbers, which selectors choose.
  bool moves = false;
  std::vector<std::size_t> selectors;  // the places of masks and indices
  bool selects(std::size_t place) const {
    return std::find(selectors.begin(), selectors.end(), place) != selectors.end();
  }
  // It multiplies its inputs.
  bool multiplies = false;
  // Its results are unknown if one of its inputs are wholly unknown numbers; if it moves elements, if
  // all are. Then nothing else follows from the inputs.
  bool passes_unknown = false;
};

OperatorTraits traits_of(const c10::OperatorHandle& op);

}  // namespace ferro::values
