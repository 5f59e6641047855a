#include "values/evaluated_call.h"

#include <string>
#include <vector>

namespace ferro::values {

Reads::Reads(const InOperator& inside)
    : unknown_(inside.reads(FERRO_SIM_UNKNOWN)), drawn_(inside.reads(FERRO_SIM_DRAWN)) {}

void Reads::note(const InOperator& inside, const OperatorTraits& traits,
                 c10::ArrayRef<c10::IValue> results) const {
  const bool unknown = inside.reads(FERRO_SIM_UNKNOWN) != unknown_;
  if (inside.is_check() || (!unknown && inside.reads(FERRO_SIM_DRAWN) == drawn_)) {
    return;
  }
  if (!unknown && inside.has_outer_size()) {
    if (!results.empty() && results.back().isScalar()) {
      inside.note_for_outer(results.back().toScalar().toLong());
    }
    return;
  }
  const auto is_float = [](const c10::IValue& result) {
    return result.isTensor() ? !at::isIntegralType(result.toTensor().scalar_type(), true)
                             : !result.isInt() && !result.isBool();
  };
  // Copies of lists return nothing, and may have any type.
  const bool integers = results.empty() || !is_float(results.back());
  const bool harmless = (integers || is_used_as_integer()) && is_harmless();
  const auto where = harmless ? std::vector<std::string>() : reached(integers);
  const bool shown = harmless || (!integers && where.empty());
  const Learned of_draws = shown ? Learned::kDrawnFloat : Learned::kDrawn;
  const Learned of_numbers = shown                              ? Learned::kFloat
                             : integers || is_used_as_integer() ? Learned::kInteger
                                                                : Learned::kDecidingFloat;
  note_read(traits.name, unknown ? of_numbers : of_draws, where, {}, integers);
}

}  // namespace ferro::values
