// Operators that draw random numbers, with the numbers of a card.
//
// Used below the program's modes (`BelowModes`).
#pragma once

#include "values/card_random.h"

#include <ATen/core/stack.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace ferro::values {

// Where the card has an argument. Its host tensor may be laid out in another way.
struct OnCard {
  std::uint64_t address = 0;
  std::vector<std::int64_t> strides;
};

// Replaces the arguments, host tensors, by the results. False, with the arguments as they were: no
// numbers of a card are known for this operator with these arguments. `find` tells of the tensor at a
// place among the arguments, and none if it was on the host.
bool draw_as_card(std::string_view name, torch::jit::Stack& stack, CardGenerator generator,
                  const std::function<std::optional<OnCard>(std::size_t)>& find);

}  // namespace ferro::values
