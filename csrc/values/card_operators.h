// Operators that draw random numbers, with the numbers of a card.
//
// Used below the program's modes (`BelowModes`).
#pragma once

#include "values/card_random.h"
#include "values/operator_traits.h"

#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

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

// What the results of a call follow from.
enum class Numbers : std::uint8_t {
  kNone,      // no random numbers: such as dropout without training
  kOfCard,    // the numbers that the card draws
  kNearCard,  // the same, but it computes with them in another way, and some results differ
  kOfHost,    // those of a generator on the host, because the card's are not known
};

// Whether the results are those of the card, given that the inputs are.
inline bool is_of_card(Numbers numbers) { return numbers <= Numbers::kOfCard; }

// `arguments`: the program's, before the device's operator. The numbers of a card also depend on its
// multiprocessors, and the threads that one of them runs at once.
Numbers numbers_of(const OperatorTraits& traits, c10::ArrayRef<c10::IValue> arguments,
                   std::uint32_t multiprocessors, std::uint32_t threads);

// Replaces the arguments, host tensors, by the results, of a call with such numbers of the card. `find`
// tells of the tensor at a place among the arguments, and none if it was on the host or empty. False:
// a card's kernel would fail by an assertion. Throws if it cannot be told.
bool draw_as_card(std::string_view name, torch::jit::Stack& stack, CardGenerator generator,
                  const std::function<std::optional<OnCard>(std::size_t)>& find);

}  // namespace ferro::values
