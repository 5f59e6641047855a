// What an operator does with memory, by its schema and, for a few, by its name.
//
// Pure functions and plain values.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace ferro::values {

enum class Kind : std::uint8_t {
  kNothing,    // views, sizes, storages: no value is made
  kReads,      // gives the host a value
  kUnset,      // gives memory that nothing wrote to
  kCopy,       // the driver moves the bytes unless they change on the way
  kPlain,      // a kernel computes the results, whose sizes do not depend on values
  kDataSized,  // the sizes of the results depend on values
  kTransfer,   // between ranks: as the next, unless who moves the bytes says what is known
  kElsewhere,  // of a library whose host version is not known to be the same: only forgets
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
  // By place among the returns: is it one of these arguments?
  std::vector<bool> return_is_argument;
  // Draws random numbers, and takes a generator or not.
  bool random = false;
  bool generator = false;
  // There is a kernel for the CPU.
  bool computable = false;
  // The last result.
  std::optional<Positions> positions;
};

OperatorTraits traits_of(const c10::OperatorHandle& op);

}  // namespace ferro::values
