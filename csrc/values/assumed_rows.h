// What is assumed of masks, and of sizes that depend on them, where unknown numbers determine them.
//
// Chosen for the process by the environment variable FERRO_ALLOC_SIM_ROWS. Unknown numbers are zeros;
// so masks of them, such as `distances < radius`, are either false or true everywhere.
#pragma once

#include "values/operator_traits.h"

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>

namespace ferro::values {

enum class Assumption : std::uint8_t {
  kZeros,      // without the variable too: masks and sizes are those of zeros
  kNone,       // masks are false, and sizes the smallest possible
  kAll,        // masks are true, and sizes the largest possible
  kNoneAlone,  // sizes are the smallest possible; masks, and what follows from them, are of zeros
  kAllAlone,   // the same, with the largest
};
Assumption assumption();

// What masks of unknown numbers are everywhere. None: what zeros give.
std::optional<bool> assumed_mask();
// Whether sizes follow from masks that agree with each other, as far as their contents are computed.
bool sizes_agree_with_masks();

// What the device's operator reads back to know the sizes of its results.
struct RowRange {
  std::int64_t fewest = 0;
  std::int64_t most = 0;
  std::int64_t of_zeros = 0;  // if the values that determine it are zeros

  std::int64_t assumed() const;
};
RowRange range_of_rows(const OperatorTraits& traits, c10::ArrayRef<c10::IValue> arguments);
// Whether the operator keeps the rows of wholly unknown boxes only at a great cost.
bool is_costly_with_zeros(const OperatorTraits& traits, c10::ArrayRef<c10::IValue> arguments);

// The dimension along which it finds unique slices. None: it finds unique elements.
std::optional<std::int64_t> unique_dimension(const OperatorTraits& traits,
                                             c10::ArrayRef<c10::IValue> arguments);

}  // namespace ferro::values
