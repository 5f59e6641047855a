#include "values/evaluation.h"

#include "values/assumed_rows.h"
#include "values/below_modes.h"
#include "values/gpu.h"
#include "values/host_operator.h"
#include "values/identity.h"
#include "values/in_operator.h"
#include "values/places.h"
#include "values/value.h"

#include <ATen/EmptyTensor.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace ferro::values {

using torch::jit::Stack;

namespace {

// Inputs of an operator that its identity depends on.
constexpr std::size_t kMaxIdentified = 32;

bool is_zero(const c10::IValue& number) { return number.isScalar() && number.toScalar().equal(0); }

// Whether PyTorch computes the gradient of a product. It asks whether factors are zero, which numbers
// seldom are, and then takes another way.
bool is_in_gradient_of_product() {
  const auto node = torch::autograd::get_current_node();
  const std::string name = node != nullptr ? node->name() : "";
  return name.starts_with("ProdBackward") || name.starts_with("CumprodBackward");
}

bool is_number(const DeviceTensor& tensor) { return !c10::isIntegralType(tensor.type(), true); }

void add_input(Identity& identity, std::size_t place, std::size_t in_list,
               const DeviceTensor& tensor, std::span<const ferro_sim_origin_piece> origins) {
  identity.add(place).add(in_list);
  identity.add_all(tensor.sizes()).add_all(tensor.strides());
  identity.add(static_cast<std::uint64_t>(tensor.type()));
  if (!tensor.is_plain()) {
    identity.add(1);
  }
  for (const ferro_sim_origin_piece& piece : origins) {
    identity.add(piece.origin.identity).add(piece.offset).add(piece.bytes);
  }
}

// Each captured operator gives results of its own. Used with the machine locked.
std::uint64_t identity_in_capture(std::uint64_t identity) {
  static std::uint64_t captured = 0;
  return Identity(identity).add(++captured).value();
}

}  // namespace

// What the inputs of a call are together.
struct Inputs {
  ferro_sim_certainty of_numbers = FERRO_SIM_KNOWN;
  ferro_sim_certainty of_others = FERRO_SIM_KNOWN;
  ferro_sim_certainty infinities = FERRO_SIM_KNOWN;
  bool lows = false;
  bool positive = true;  // those that are unknown
  bool any_certain = false;
  bool any_unknown = false;

  struct Signs {
    bool has_lows = false;
    bool is_positive = false;
  };
  // `is`: of the least certain element.
  Signs add_number(const DeviceTensor& tensor, ferro_sim_certainty is,
                   std::span<const ferro_sim_origin_piece> origins) {
    Signs signs{false, tensor.is_plain()};
    for (const ferro_sim_origin_piece& piece : origins) {
      infinities = std::min(infinities, piece.origin.infinities);
      signs.has_lows = signs.has_lows || piece.origin.has_lows != 0;
      signs.is_positive = signs.is_positive && piece.origin.is_positive != 0;
    }
    of_numbers = std::min(of_numbers, is);
    lows = lows || signs.has_lows;
    any_certain = any_certain || is != FERRO_SIM_UNKNOWN;
    any_unknown = any_unknown || is == FERRO_SIM_UNKNOWN;
    positive = positive && (is != FERRO_SIM_UNKNOWN || signs.is_positive);
    return signs;
  }
  void add_other(const OperatorTraits& traits, ferro_sim_certainty is) {
    of_others = std::min(of_others, is);
    any_certain = any_certain || (traits.multiplies && is != FERRO_SIM_UNKNOWN);
  }
};

// What an evaluation found out about its call.
struct Facts {
  std::int64_t input_elements = 0;
  std::int64_t result_elements = 0;
  std::int64_t largest = 0;  // the most elements of an input or result
  bool agrees = false;       // no input is of floating-point numbers
  bool computable = false;
  bool takes_unknown = false;
  bool taken = false;  // `take` has run
  bool ran = false;
  ferro_sim_certainty certainty = FERRO_SIM_KNOWN;  // of the inputs, and so of the results
  bool value_if_known = false;                      // or drawn
  bool value_if_unknown = false;
  bool value_if_of_masks = false;
  bool tests_whether_finite = false;
  bool compares_with_zero = false;
  Extremes extremes;
  int device = -1;  // a capture's, and its stream
  void* stream = nullptr;
  std::uint64_t identity = 0;  // of the call on these inputs
  // Of the results, except for their identities.
  ferro_sim_origin origin = {0, FERRO_SIM_KNOWN, 0, 0, 0, 0};
  bool tells_lows = false;  // the results are unknown, and which of them are low is not
  bool differs = false;     // the elements of its lists are not equally certain
  bool in_part = false;     // the results are unknown, except for some of their elements
  bool may_cover = false;   // certain elements may take all places of a wholly unknown argument
  bool of_masks = false;    // the unknown inputs follow from masks and known data alone
  bool asks_truth = false;  // of unknown numbers, and these do not
  bool is_part = false;     // of another operator

  // What the results are, as far as it follows from what the numbers are.
  void find_origin(const OperatorTraits& traits, const Inputs& inputs) {
    const bool lows = inputs.lows;
    const bool positive = inputs.positive && inputs.any_unknown;
    const ferro_sim_certainty infinities = inputs.infinities;
    if (!traits.passes_numbers) {
      origin.is_positive = traits.gives_positive ? 1 : 0;
      if (traits.may_keep_infinities) {
        origin.infinities = lows ? FERRO_SIM_UNKNOWN : infinities;
      }
      return;
    }
    // A mask makes places zero, and all other numbers are more.
    const bool zeroes = positive && traits.keeps_sign &&
                        (inputs.any_certain || (extremes.zero && !traits.multiplies));
    const bool sets = extremes.low || extremes.infinity || zeroes;
    const bool is_positive =
        traits.gives_positive || (positive && traits.keeps_sign && !extremes.low);
    origin.is_positive = is_positive ? 1 : 0;
    origin.has_lows = lows || sets ? 1 : 0;
    const bool matters = lows || sets || infinities != FERRO_SIM_KNOWN;
    origin.infinities = traits.gives_finite ? FERRO_SIM_KNOWN
                        : matters           ? std::min(infinities, inputs.of_others)
                                            : infinities;
    tells_lows = certainty == FERRO_SIM_UNKNOWN && inputs.of_others != FERRO_SIM_UNKNOWN &&
                 origin.has_lows != 0;
  }
  // Of one result.
  ferro_sim_origin origin_of(std::uint64_t seed, bool of_argument, std::size_t place,
                             std::size_t in_list) const {
    ferro_sim_origin of_result = origin;
    of_result.identity =
        Identity(identity).add(seed).add(of_argument ? 1 : 0).add(place).add(in_list).value();
    return of_result;
  }
};

// Queued work of an evaluation, of which each turn holds a reference.
struct Evaluation::Job : c10::intrusive_ptr_target, Facts {
  struct Result {
    Value::Slot slot;
    bool keeps = false;
    at::Tensor doubts = {};  // of a result that is known in part
  };

  Job(const c10::OperatorHandle& op, const OperatorTraits& of) : host(op, of), traits(&of) {}

  HostOperator host;
  const OperatorTraits* traits;
  std::optional<PositionsRange> positions;
  std::optional<ChosenFrom> chosen_from;
  std::vector<Result> results;
  // Of the inputs at each place of the lists, if they are kept apart.
  std::vector<ferro_sim_certainty> of_elements;

  // For another call, with the memory of the lists.
  void use_again(const c10::OperatorHandle& op, const OperatorTraits& of) {
    static_cast<Facts&>(*this) = Facts();
    drop_inputs();
    host.use_again(op, of);
    traits = &of;
    positions.reset();
    results.clear();
    of_elements.clear();
  }

  void take() {
    Identity of_inputs(identity);
    Inputs inputs;
    std::size_t count = 0;
    of_masks = true;
    for (Operand& operand : host.operands()) {
      if (!operand.is_input) {
        continue;
      }
      // The identity of a long list is that of its beginning.
      const bool has_identity = ++count <= kMaxIdentified && !is_statistic(operand);
      if (!has_identity && inputs.of_numbers == FERRO_SIM_UNKNOWN && !traits->passes_numbers) {
        if (traits->by_element) {
          add_to_element(operand);
        }
        of_masks = false;
        continue;
      }
      const DeviceTensor::Origins there = operand.at.origins();
      const std::span origins = there.pieces;
      if (has_identity) {
        add_input(of_inputs, operand.place, operand.in_list, operand.at, origins);
      }
      const ferro_sim_certainty is = operand.at.certainty(there);
      operand.certainties = {is, there.of_span.most};
      if (traits->by_element) {
        element_of(operand) = std::min(element_of(operand), is);
      }
      if (is == FERRO_SIM_UNKNOWN && of_masks) {
        of_masks = std::all_of(
            origins.begin(), origins.end(),
            [](const ferro_sim_origin_piece& piece) { return piece.origin.of_masks != 0; });
      }
      if (!is_number(operand.at)) {
        inputs.add_other(*traits, is);
        continue;
      }
      const auto [has_lows, is_positive] = inputs.add_number(operand.at, is, origins);
      if (is == FERRO_SIM_UNKNOWN) {
        operand.is_ones = is_positive && !has_lows;
      }
      if (positions && is == FERRO_SIM_UNKNOWN && operand.place == 0) {
        choose_from(operand, origins, has_lows, is_positive);
      }
    }
    identity = of_inputs.value();
    certainty = std::min(inputs.of_numbers, inputs.of_others);
    find_origin(*traits, inputs);
    // Unknown numbers are assumed to be finite, as zeros are, unless the program set some.
    const bool is_assumed = certainty == FERRO_SIM_UNKNOWN && tests_whether_finite &&
                            inputs.infinities != FERRO_SIM_UNKNOWN;
    certainty = is_assumed ? inputs.infinities : certainty;
    const bool are_others =
        compares_with_zero && certainty == FERRO_SIM_UNKNOWN && are_wholly_unknown_numbers();
    const bool passes = are_others || (traits->assumes_true && certainty == FERRO_SIM_UNKNOWN);
    certainty = passes ? FERRO_SIM_KNOWN : certainty;
    if (traits->random && certainty == FERRO_SIM_KNOWN) {
      host.set_known_operands();
    }
    if (!is_of_card(host.numbers())) {
      certainty = std::min(certainty, FERRO_SIM_DRAWN);
    }
    if (traits->by_element) {
      keep_elements_apart();
    }
    may_cover = certainty == FERRO_SIM_UNKNOWN && may_take_all_places();
    in_part = computable && certainty == FERRO_SIM_UNKNOWN && !is_assumed &&
              may_be_known_in_part() && find_parts();
    host.assume_finite(certainty == FERRO_SIM_UNKNOWN && !in_part);
    of_masks = of_masks && certainty == FERRO_SIM_UNKNOWN;
    computable = computable && (certainty != FERRO_SIM_UNKNOWN || takes_unknown || tells_lows ||
                                in_part || (of_masks && may_follow_masks()));
    asks_truth = traits->tests_truth && !of_masks && has_only_unknown_numbers();
    const std::optional<bool> truth = asks_truth ? assumed_mask() : std::nullopt;
    for (Operand& operand : host.operands()) {
      operand.is_ones = passes || truth.value_or(false) || (operand.is_ones && tells_lows);
      if (computable && operand.is_input && !operand.is_ones && !operand.is_left_out) {
        const bool assumes = (is_assumed && !inputs.lows) || truth.has_value();
        const bool any_known = operand.certainties.most != FERRO_SIM_UNKNOWN;
        if (assumes && !any_known) {
          operand.taken = operand.at.zeros();
        } else {
          operand.at.take(operand.taken);
        }
        if (assumes && any_known) {
          assume_finite(operand);
        }
        computable = operand.taken.has_value();
      }
    }
    taken = true;
  }

  // For results of sizes that depend on values.
  void run() {
    const BelowModes guard;
    ran = computable && host.run();
  }

  void drop_inputs() {
    host.clear(true);
    chosen_from.reset();
  }

  void give() {
    in_part = in_part && computable && value_if_known && find_doubts();
    const bool is_mask = gives_mask();
    const std::optional<bool> mask = is_mask ? assumed_mask() : std::nullopt;
    const bool is_same = mask && !in_part;  // everywhere
    const bool has_values =
        ran || ((is_same || (computable && has_value_if_taken())) && Recipe::make_room());
    const bool agrees = is_mask || asks_truth || of_masks;
    origin.of_masks = !has_values                      ? 0
                      : certainty != FERRO_SIM_UNKNOWN ? FERRO_SIM_OF_KNOWN
                      : agrees                         ? FERRO_SIM_OF_MASKS
                                                       : 0;
    if (!has_values && certainty == FERRO_SIM_UNKNOWN && origin.has_lows != 0) {
      origin.has_lows = 0;
      origin.infinities = FERRO_SIM_UNKNOWN;
    }
    std::shared_ptr<Recipe> recipe;
    if (has_values && !ran) {
      recipe =
          is_same ? std::make_shared<Recipe>(*mask) : std::make_shared<Recipe>(std::move(host));
    }
    if (traits->zeroes_unknown) {
      for (Result& result : results) {
        result.keeps = result.slot.layout.certainty() != FERRO_SIM_UNKNOWN;
      }
    }
    // Made before the first one is held: shared memory computes it at once, and then all of them.
    std::vector<ValueRef> made;
    const auto is_made_first = [&](const Result& result) {
      return !is_left_out(result.slot) && result.slot.layout.can_hold();
    };
    if (recipe && results.size() > 1) {
      for (const Result& result : results) {
        if (is_made_first(result)) {
          made.emplace_back(Value::make(recipe, result.slot, origin_of(result.slot)));
        }
      }
    }
    auto next = made.begin();
    for (const Result& result : results) {
      if (next != made.end() && is_made_first(result)) {
        result.slot.layout.hold(**next++, certainty_of(result));
      } else if (mask && result.doubts.defined() && set_doubtful(result, recipe, *mask)) {
        // Marked below.
      } else if (!has_values || is_left_out(result.slot) || !give_value(result, recipe)) {
        result.slot.layout.forget(result.keeps, origin_of(result.slot));
        continue;
      }
      if (result.doubts.defined()) {
        result.slot.layout.mark(result.doubts);
      }
    }
    if (chosen_from && !has_values && !results.empty()) {
      draw(results.back().slot);
    }
    drop_inputs();
  }

  // In a capture: the kernels run in replays, where their values are not computed.
  void give_in_replays() {
    identity = identity_in_capture(identity);
    for (const Result& result : results) {
      result.slot.layout.forget_in_replays(device, stream, origin_of(result.slot));
    }
    drop_inputs();
  }

  bool has_value_if_taken() const {
    return certainty != FERRO_SIM_UNKNOWN || in_part
               ? value_if_known
               : value_if_unknown || (of_masks && value_if_of_masks) ||
                     (tells_lows && value_if_known);
  }

 private:
  bool are_wholly_unknown_numbers() {
    const std::vector<Operand>& operands = host.operands();
    return std::all_of(operands.begin(), operands.end(), [](const Operand& operand) {
      return is_number(operand.at) && operand.certainties.most == FERRO_SIM_UNKNOWN;
    });
  }

  // Whether numbers that follow from masks are computed. Choices of such numbers are drawn.
  bool may_follow_masks() const {
    return !traits->costly && !positions && input_elements <= kMaxUnknownElements;
  }
  // No scalars, and no element of them is known.
  bool has_only_unknown_numbers() const {
    return std::all_of(host.operands().begin(), host.operands().end(), [](const Operand& operand) {
      return !operand.is_input || (operand.at.type() != at::kBool && !operand.at.sizes().empty() &&
                                   operand.certainties.most == FERRO_SIM_UNKNOWN);
    });
  }
  // Whether the results are masks of unknown numbers. A comparison within an operator checks its
  // arguments.
  bool gives_mask() const {
    if (!traits->compares || certainty != FERRO_SIM_UNKNOWN || of_masks || tells_lows ||
        tests_whether_finite || is_part) {
      return false;
    }
    const auto is_mask = [](const Result& result) {
      return result.slot.layout.type() == at::kBool && !result.slot.layout.sizes().empty();
    };
    const auto is_boolean = [](const Operand& operand) {
      return operand.is_input && operand.at.type() == at::kBool;
    };
    return std::all_of(results.begin(), results.end(), is_mask) &&
           std::none_of(host.operands().begin(), host.operands().end(), is_boolean);
  }
  bool is_statistic(const Operand& operand) const {
    return std::find(traits->statistics.begin(), traits->statistics.end(), operand.place) !=
           traits->statistics.end();
  }

  // That of the place of the lists where the operand is, or of all places.
  ferro_sim_certainty& element_of(const Operand& operand) {
    const bool in_list = traits->argument_is_list[operand.place];
    const std::size_t at = in_list ? operand.in_list + 1 : 0;
    if (of_elements.size() <= at) {
      of_elements.resize(at + 1, FERRO_SIM_KNOWN);
    }
    return of_elements[at];
  }

  void add_to_element(const Operand& operand) {
    if (ferro_sim_certainty& element = element_of(operand); element != FERRO_SIM_UNKNOWN) {
      element = std::min(element, operand.at.certainty());
    }
  }

  // Results of known elements do not depend on unknown ones beside them.
  void keep_elements_apart() {
    for (const Operand& operand : host.operands()) {
      element_of(operand);  // also of those that are only overwritten
    }
    ferro_sim_certainty most = FERRO_SIM_UNKNOWN;
    for (std::size_t i = 1; i < of_elements.size(); ++i) {
      of_elements[i] = std::min(of_elements[i], of_elements[0]);
      most = std::max(most, of_elements[i]);
    }
    if (most == FERRO_SIM_UNKNOWN) {
      return;
    }
    differs = most != certainty;
    certainty = most;
    for (Operand& operand : host.operands()) {
      operand.is_left_out =
          traits->argument_is_list[operand.place] && element_of(operand) == FERRO_SIM_UNKNOWN;
      computable = computable && (operand.is_left_out || operand.at.elements() <= kMaxElements);
    }
  }

  // Whether elements of the results may be known although others are unknown. Notes the doubts of the
  // inputs.
  bool find_parts() {
    ferro_sim_certainty moved = FERRO_SIM_UNKNOWN;
    for (Operand& operand : host.operands()) {
      if (!operand.is_input) {
        continue;
      }
      auto& [least, most] = operand.certainties;
      if (least == FERRO_SIM_UNKNOWN && most != FERRO_SIM_UNKNOWN) {
        const BelowModes guard;
        operand.doubts = operand.at.doubts(max_in_part(), kMaxParts).value_or(at::Tensor());
        most = operand.doubts.defined() ? most : FERRO_SIM_UNKNOWN;
      }
      if (operand.doubts.defined() && operand.is_ones && tells_lows) {
        return false;  // its known elements are not computed
      }
      if (traits->moves && !traits->selects(operand.place)) {
        moved = std::max(moved, most);
      } else if ((traits->works_by_element ? most : least) == FERRO_SIM_UNKNOWN) {
        return false;  // all elements follow from it
      }
    }
    return !traits->moves || moved != FERRO_SIM_UNKNOWN;
  }

  // Its unknown elements may hold infinities, such as the logarithms of zeros.
  void assume_finite(Operand& operand) const {
    const BelowModes guard;
    if (operand.certainties.least == FERRO_SIM_UNKNOWN && is_number(operand.at)) {
      if (const auto doubts = operand.at.doubts(max_in_part(), kMaxParts)) {
        operand.zeroed = doubts->eq(FERRO_SIM_KNOWN - FERRO_SIM_UNKNOWN);
      }
    }
  }

  // As the inverse of a permutation does in what `empty` returned.
  bool may_take_all_places() const {
    if (!traits->moves || traits->written.empty() || traits->written[0] != 0) {
      return false;
    }
    const std::vector<Operand>& operands = host.operands();
    const auto is_first = [](const Operand& operand) {
      return operand.place == 0 && operand.in_list == 0;
    };
    const auto first = std::find_if(operands.begin(), operands.end(), is_first);
    if (first == operands.end() || !first->is_input ||
        first->certainties.most != FERRO_SIM_UNKNOWN) {
      return false;
    }
    std::int64_t most = 0;
    for (const Operand& operand : operands) {
      if (is_first(operand) || !operand.is_input) {
        continue;
      }
      if (operand.certainties.least == FERRO_SIM_UNKNOWN) {
        return false;
      }
      most = std::max(most, operand.at.elements());
    }
    return most >= first->at.elements();
  }

  std::int64_t max_in_part() const {
    return may_cover ? kMaxUnknownElements : agrees ? kMaxPartlyKnown : kMaxPartlyKnownNumbers;
  }
  bool may_be_known_in_part() const {
    // Training computes with many tensors of numbers, and no size depends on parts of these.
    const bool computes = !traits->moves && traits->kind != Kind::kCopy && !agrees;
    return (traits->moves || traits->works_by_element) &&
           input_elements <= (computes ? kMaxComputedParts : max_in_part());
  }

  // Gives the results doubts. False: all of their elements are unknown.
  bool find_doubts() {
    const BelowModes guard;
    bool any = false;
    try {
      if (result_elements <= max_in_part() && host.find_doubts()) {
        for (Result& result : results) {
          const Value::Slot& slot = result.slot;
          const auto doubts = host.doubts(slot.of_argument, slot.place, slot.in_list);
          const auto laid_out =
              doubts ? slot.layout.lay_out_doubts(*doubts, kMaxParts) : std::nullopt;
          result.doubts = laid_out.value_or(at::Tensor());
          any = any || laid_out.has_value();
        }
      }
    } catch (const std::exception&) {
      any = false;
    }
    host.clear(false);
    for (Operand& operand : host.operands()) {
      operand.doubts.reset();
    }
    for (Result& result : results) {
      result.doubts = any ? result.doubts : at::Tensor();
    }
    return any;
  }

  ferro_sim_certainty certainty_of(const Value::Slot& slot) const {
    return differs && slot.in_list + 1 < of_elements.size() ? of_elements[slot.in_list + 1]
                                                            : certainty;
  }
  // Before its elements are marked.
  ferro_sim_certainty certainty_of(const Result& result) const {
    return result.doubts.defined() ? FERRO_SIM_KNOWN : certainty_of(result.slot);
  }
  bool is_left_out(const Value::Slot& slot) const {
    return differs && certainty_of(slot) == FERRO_SIM_UNKNOWN;
  }

  void choose_from(const Operand& operand, std::span<const ferro_sim_origin_piece> origins,
                   bool has_lows, bool is_positive) {
    Identity of_numbers;
    for (const ferro_sim_origin_piece& piece : origins) {
      of_numbers.add(piece.origin.identity).add(piece.offset).add(piece.bytes);
    }
    chosen_from.emplace(ChosenFrom{operand.at.sizes(),
                                   operand.at.strides(),
                                   operand.at.element_bytes(),
                                   of_numbers.value(),
                                   {origins.begin(), origins.end()},
                                   std::nullopt,
                                   is_positive});
    if (has_lows) {
      operand.at.take(chosen_from->lows);
    }
  }

  ferro_sim_origin origin_of(const Value::Slot& slot) const {
    ferro_sim_origin of_slot =
        Facts::origin_of(host.seed(), slot.of_argument, slot.place, slot.in_list);
    if (is_left_out(slot)) {
      of_slot.of_masks = 0;
    }
    return of_slot;
  }

  bool give_value(const Result& result, const std::shared_ptr<Recipe>& recipe) {
    const DeviceTensor& there = result.slot.layout;
    const ferro_sim_origin from = origin_of(result.slot);
    if (recipe && there.can_hold() && !there.is_interleaved()) {
      there.hold(*ValueRef(Value::make(recipe, result.slot, from)), certainty_of(result));
      return true;
    }
    if (recipe && there.is_interleaved() && hold_span(result, recipe, from)) {
      return true;
    }
    const BelowModes guard;
    std::optional<at::Tensor> computed;
    if (recipe) {
      computed = ValueRef(Value::make(recipe, result.slot, from))->compute();
    } else if (auto value =
                   host.value(result.slot.of_argument, result.slot.place, result.slot.in_list)) {
      computed = there.lay_out(*value);
    }
    if (!computed || !computed->defined()) {
      return false;
    }
    hold_or_write(result, *computed);
    return true;
  }

  // `laid_out`: a tensor that `lay_out` returned.
  void hold_or_write(const Result& result, const at::Tensor& laid_out) const {
    const DeviceTensor& there = result.slot.layout;
    const ferro_sim_origin from = origin_of(result.slot);
    if (there.can_hold()) {
      there.hold(*ValueRef(Value::make(laid_out, from)), certainty_of(result));
    } else {
      there.write(laid_out, certainty_of(result), from);
    }
  }

  // The elements of a mask that are unknown are what is assumed of masks. False: it is not computed.
  bool set_doubtful(const Result& result, const std::shared_ptr<Recipe>& recipe, bool mask) const {
    if (!recipe) {
      return false;
    }
    const BelowModes guard;
    const at::Tensor computed =
        ValueRef(Value::make(recipe, result.slot, origin_of(result.slot)))->compute();
    if (computed.defined()) {
      hold_or_write(result, computed.masked_fill(
                                result.doubts.eq(FERRO_SIM_KNOWN - FERRO_SIM_UNKNOWN), mask));
    }
    return computed.defined();
  }

  bool hold_span(const Result& result, const std::shared_ptr<Recipe>& recipe,
                 const ferro_sim_origin& from) const {
    const DeviceTensor& there = result.slot.layout;
    std::optional<DeviceTensor::Span> under = there.take_span();
    if (!under) {
      return false;
    }
    const std::uint64_t begin = there.address() - under->before;
    const std::size_t bytes = under->taken.pieces.bytes();
    const ferro_sim_origin all = there.origin_of_span(begin, bytes, from);
    const ValueRef value(Value::make(recipe, result.slot, all, std::move(*under)));
    return there.hold_span(*value, begin, bytes, certainty_of(result));
  }

  // Positions of numbers are choices; those of unknown integers and booleans are unknown.
  void draw(const Value::Slot& slot) {
    const DeviceTensor& there = slot.layout;
    if (there.type() != at::kLong || positions->extent <= 0 || !there.can_hold()) {
      return;
    }
    const auto recipe = std::make_shared<Recipe>(
        DrawnPositions{there.sizes(), positions->dimension, std::move(*chosen_from),
                       positions->ranks, traits->random ? Identity(host.seed()).value() : 0});
    there.hold(*ValueRef(Value::make(recipe, slot, origin_of(slot))),
               agrees ? FERRO_SIM_UNKNOWN : FERRO_SIM_DRAWN);
  }
};

namespace {

using JobPtr = c10::intrusive_ptr<Evaluation::Job>;

// Jobs of ended evaluations for the next ones of the thread. An evaluation looks for them once.
thread_local std::vector<JobPtr> own_spare_jobs;
constexpr std::size_t kMaxSpareJobs = 8;
// Jobs with more operands or results are not used again.
constexpr std::size_t kMaxSpareOperands = 4096;

// For `call_job`, which takes the reference over.
void* hold(const JobPtr& job) { return JobPtr(job).release(); }

template <void (Evaluation::Job::*act)()>
void call_job(void* held) {
  const JobPtr job = JobPtr::reclaim(static_cast<Evaluation::Job*>(held));
  ((*job).*act)();
}

// Visits the tensors of an argument or result, with their places in a list.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor(), 0);
  } else if (value.isList()) {
    std::size_t i = 0;
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) {
        visit(element.toTensor(), i);
      }
      ++i;
    }
  }
}

// The dense tensors that hold the elements of a tensor.
std::vector<at::Tensor> parts_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() == at::kStrided) {
    return {tensor};
  }
  // Without the dispatcher, which would count these as the program's operators.
  if (tensor.layout() == at::kSparse) {
    const auto* sparse = static_cast<at::SparseTensorImpl*>(tensor.unsafeGetTensorImpl());
    return {sparse->indices(), sparse->values()};
  }
  if (at::sparse_csr::is_sparse_compressed(tensor)) {
    const auto* sparse = at::sparse_csr::get_sparse_csr_impl(tensor);
    return {sparse->compressed_indices(), sparse->plain_indices(), sparse->values()};
  }
  return {};
}

bool same_layout(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && one.strides() == other.strides() &&
         one.is_non_overlapping_and_dense() && one.is_conj() == other.is_conj() &&
         one.is_neg() == other.is_neg();
}

}  // namespace

Evaluation::Evaluation(const c10::OperatorHandle& op, const OperatorTraits& traits)
    : op_(op), traits_(traits) {}

Evaluation::~Evaluation() {
  if (answering_) {
    gpu().end_answer();
  }
  if (takes_ && !is_given_) {
    gpu().at_once(call_job<&Job::drop_inputs>, hold(job_));
  }
  if (job_ && job_.use_count() == 1 && spare_jobs_->size() < kMaxSpareJobs &&
      std::max(job_->host.operands().capacity(), job_->results.capacity()) <= kMaxSpareOperands) {
    spare_jobs_->push_back(std::move(job_));
  }
}

void Evaluation::make_job() {
  spare_jobs_ = &own_spare_jobs;
  if (spare_jobs_->empty()) {
    job_ = c10::make_intrusive<Job>(op_, traits_);
    return;
  }
  job_ = std::move(spare_jobs_->back());
  spare_jobs_->pop_back();
  job_->use_again(op_, traits_);
}

bool Evaluation::is_moved_by_driver(Arguments arguments) {
  // One kernel copies the tensors of lists.
  if (!arguments[0].isTensor()) {
    return false;
  }
  c10::SmallVector<const at::Tensor*, 2> tensors;
  for (const c10::IValue& argument : arguments) {
    for_each_tensor(argument,
                    [&](const at::Tensor& tensor, std::size_t) { tensors.push_back(&tensor); });
  }
  // Between the host and a card, and between cards unless a kernel changes types or layouts.
  const bool with_host = std::any_of(tensors.begin(), tensors.end(),
                                     [](const at::Tensor* tensor) { return !tensor->is_cuda(); });
  return with_host ||
         (tensors.size() == 2 && tensors[0]->scalar_type() == tensors[1]->scalar_type() &&
          tensors[0]->layout() == at::kStrided && tensors[1]->layout() == at::kStrided &&
          same_layout(*tensors[0], *tensors[1]));
}

bool Evaluation::copies_between_cards(Arguments arguments) const {
  return traits_.kind == Kind::kCopy && arguments[0].isTensor() &&
         arguments[0].toTensor().device() != arguments[1].toTensor().device();
}

bool Evaluation::submit(void (*function)(void*)) {
  void* const held = hold(job_);
  if (gpu().in_order(device_, stream_, function, held) != 0) {
    JobPtr::reclaim(static_cast<Job*>(held));
    return false;
  }
  return true;
}

template <typename Visit>
void Evaluation::for_each_argument(Arguments arguments, const Visit& visit) const {
  const bool ignores_first = traits_.factor && is_zero(arguments[*traits_.factor]);
  for (std::size_t place = 0; place < arguments.size(); ++place) {
    const bool overwritten = (place == 0 && ignores_first) || traits_.overwrites(place);
    for_each_tensor(arguments[place], [&](const at::Tensor& tensor, std::size_t in_list) {
      if (tensor.defined()) {
        visit(tensor, place, in_list, overwritten);
      }
    });
  }
}

template <typename Visit>
void Evaluation::for_each_result(Arguments results, const Visit& visit) const {
  for (const std::size_t place : traits_.written) {
    for_each_tensor(kept_[place], [&](const at::Tensor& tensor, std::size_t in_list) {
      // An argument that is only overwritten has no contents to keep.
      visit(tensor, true, place, in_list, !traits_.overwrites(place));
    });
  }
  for (std::size_t i = 0; i < traits_.returns; ++i) {
    if (!traits_.return_is_argument[i]) {
      for_each_tensor(results[i], [&](const at::Tensor& tensor, std::size_t in_list) {
        visit(tensor, false, i, in_list, false);
      });
    }
  }
}

void Evaluation::find_operands(Arguments arguments, bool between_cards) {
  bool describable = true;
  std::vector<Operand>& operands = job_->host.operands();
  operands.reserve(static_cast<std::size_t>(
      std::count_if(arguments.begin(), arguments.end(),
                    [](const c10::IValue& argument) { return argument.isTensor(); })));
  for_each_argument(arguments, [&](const at::Tensor& tensor, std::size_t place, std::size_t in_list,
                                   bool overwritten) {
    const std::int64_t read = overwritten ? 0 : tensor.numel();
    job_->input_elements += read;
    job_->largest = std::max(job_->largest, read);
    if (!tensor.is_cuda()) {
      return;
    }
    const int device = tensor.device().index();
    describable = describable && (device_ < 0 || device_ == device || between_cards);
    device_ = device;
    Operand& operand = operands.emplace_back();
    if (operand.at.describe(tensor) && (operand.at.is_plain() || !traits_.positions)) {
      operand.place = place;
      operand.in_list = in_list;
      operand.is_input = !overwritten;
    } else {
      operands.pop_back();
      describable = describable && tensor.numel() == 0;
    }
  });
  for (const c10::IValue& argument : arguments) {
    if (device_ < 0 && argument.isDevice() && argument.toDevice().is_cuda()) {
      const c10::Device device = argument.toDevice();
      device_ = device.has_index() ? device.index() : c10::cuda::current_device();
    }
  }
  const bool is_small =
      traits_.costly ? job_->input_elements <= kMaxCostlyElements : job_->largest <= kMaxElements;
  // The elements of lists are counted when it is clear which of them are known.
  job_->computable = traits_.computable && describable && (traits_.by_element || is_small);
  const bool of_numbers = std::any_of(operands.begin(), operands.end(), [](const Operand& operand) {
    return operand.is_input && is_number(operand.at);
  });
  job_->agrees = !of_numbers;
  const std::int64_t counted = traits_.by_element ? job_->input_elements : job_->largest;
  job_->takes_unknown =
      !traits_.costly && (job_->input_elements <= kMaxUnknownNumbers ||
                          (counted <= kMaxUnknownElements &&
                           (!of_numbers || traits_.tests || traits_.kind == Kind::kDataSized)));
}

void Evaluation::keep(Arguments arguments, Lifetime lifetime) {
  if (lifetime == Lifetime::kOfCaller) {
    kept_ = arguments;
  } else {
    owned_.assign(arguments.begin(), arguments.end());
    kept_ = owned_;
  }
}

void Evaluation::begin(Arguments arguments, Lifetime lifetime, Expectation* expects_unknown) {
  if (traits_.kind == Kind::kCopy && is_moved_by_driver(arguments)) {
    nothing_to_do_ = true;
    return;
  }
  expects_unknown_ = traits_.passes_unknown ? expects_unknown : nullptr;
  if (expects_unknown_ != nullptr && expects_unknown_->load(std::memory_order_relaxed) &&
      lifetime == Lifetime::kOfCaller && !copies_between_cards(arguments)) {
    kept_ = arguments;
    is_postponed_ = true;
    return;
  }
  prepare(arguments, lifetime);
}

void Evaluation::prepare(Arguments arguments, Lifetime lifetime) {
  const bool between_cards = copies_between_cards(arguments);
  make_job();
  find_operands(arguments, between_cards);
  if (device_ < 0) {
    nothing_to_do_ = true;
    return;
  }
  if (traits_.positions) {
    job_->positions = range_of_positions(traits_, op_.schema(), arguments);
  }
  job_->tests_whether_finite = tests_whether_finite(traits_, arguments);
  job_->compares_with_zero =
      traits_.tests_equality && is_zero(arguments[1]) && is_in_gradient_of_product();
  job_->is_part = traits_.compares && InOperator::is_part();
  if (traits_.passes_numbers) {
    job_->extremes = extremes_of(op_.schema(), arguments);
  }
  job_->identity = identity_of(arguments);
  if (traits_.leaves_inputs && !between_cards &&
      (traits_.written.empty() || arguments[0].isTensor())) {
    takes_late_ = true;
    if (job_->computable || !traits_.written.empty()) {
      keep(arguments, lifetime);
    }
    return;
  }
  stream_ = current_stream(device_);
  if (traits_.random) {
    job_->host.find_numbers(arguments, device_);
  }
  takes_ = submit(call_job<&Job::take>);
  job_->computable = job_->computable && takes_;
  if (between_cards) {
    // The source's stream copies, and the target's one waits for it.
    device_ = arguments[0].toTensor().device().index();
    stream_ = current_stream(device_);
  }
  // A capture refuses the question for the generator's offset.
  if (takes_ && traits_.random) {
    job_->host.seed(arguments, device_);
  }
  if (traits_.kind == Kind::kDataSized) {
    if (job_->computable && !job_->taken) {
      c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device_)).synchronize();
    }
    begin_sized(arguments);
  }
  if (job_->computable || !traits_.written.empty()) {
    keep(arguments, lifetime);
  }
}

std::uint64_t Evaluation::identity_of(Arguments arguments) const {
  Identity call(traits_.hash);
  for (const c10::IValue& argument : arguments) {
    call.add(argument);
  }
  return call.value();
}

void Evaluation::begin_sized(Arguments arguments) {
  const bool is_size = traits_.name != "aten::equal";
  const RowRange rows = is_size ? range_of_rows(traits_, arguments) : RowRange();
  if (is_size && job_->certainty == FERRO_SIM_UNKNOWN) {
    const bool by_contents =
        assumption() == Assumption::kZeros
            ? !is_costly_with_zeros(traits_, arguments)
            : sizes_agree_with_masks() && job_->of_masks && traits_.name == "aten::nonzero";
    job_->computable = job_->computable && by_contents;
  }
  if (job_->computable) {
    job_->computable = job_->host.take_arguments(arguments);
  }
  gpu().at_once(call_job<&Job::run>, hold(job_));
  const std::int64_t answer = job_->ran ? job_->host.answer() : rows.assumed();
  gpu().answer(static_cast<std::uint64_t>(answer));
  answering_ = true;
  if (job_->ran && job_->certainty == FERRO_SIM_DRAWN) {
    note_read(traits_.name, Learned::kDrawn);
  } else if (!job_->ran || job_->certainty == FERRO_SIM_UNKNOWN) {
    const char* const among = rows.fewest == rows.most ? ""
                              : answer == rows.fewest  ? "fewest"
                              : answer == rows.most    ? "most"
                                                       : "zeros";
    note_read(traits_.name, is_size ? Learned::kSize : Learned::kInteger, {}, among);
  }
}

void Evaluation::end(Stack& stack) {
  if (answering_) {
    gpu().end_answer();
    answering_ = false;
  }
  if (job_ && job_->ran) {
    fit_results(stack);
  }
  end(torch::jit::last(stack, traits_.returns));
}

void Evaluation::end(Arguments results) {
  if (is_postponed_) {
    if (ends_unknown(results)) {
      return;
    }
    expects_unknown_->store(false, std::memory_order_relaxed);
    prepare(kept_, Lifetime::kOfCaller);
  }
  if (nothing_to_do_) {
    return;
  }
  collect_results(results);
  if (job_->results.empty()) {
    return;
  }
  choose();
  if (takes_late_ && take_late()) {
    if (expects_unknown_ != nullptr && job_->certainty == FERRO_SIM_UNKNOWN) {
      expects_unknown_->store(true, std::memory_order_relaxed);
    }
    return;
  }
  take_arguments();
  is_given_ = true;
  if (!submit(call_job<&Job::give>)) {
    job_->device = device_;
    job_->stream = stream_;
    gpu().at_once(call_job<&Job::give_in_replays>, hold(job_));
  }
}

void Evaluation::forget(Arguments results) {
  make_job();
  find_operands(kept_, copies_between_cards(kept_));
  if (device_ < 0) {
    return;
  }
  job_->identity = Identity(traits_.hash).value();
  stream_ = current_stream(device_);
  // Results may share parts with arguments.
  std::vector<std::uint64_t> known;
  DeviceTensor described;
  for (const c10::IValue& argument : kept_) {
    for_each_tensor(argument, [&](const at::Tensor& tensor, std::size_t) {
      for (const at::Tensor& part : parts_of(tensor)) {
        if (described.describe(part)) {
          known.push_back(described.address());
        }
      }
    });
  }
  const auto add = [&](const c10::IValue& value, bool keeps) {
    for_each_tensor(value, [&](const at::Tensor& tensor, std::size_t) {
      for (const at::Tensor& part : parts_of(tensor)) {
        if (described.describe(part) &&
            (keeps || std::find(known.begin(), known.end(), described.address()) == known.end())) {
          job_->results.push_back({{described, false, 0, 0}, keeps});
        }
      }
    });
  };
  for (const std::size_t place : traits_.written) {
    add(kept_[place], true);
  }
  for (std::size_t i = 0; i < traits_.returns; ++i) {
    if (!traits_.return_is_argument[i]) {
      add(results[i], false);
    }
  }
  job_->computable = false;
  is_given_ = true;
  if (!submit(call_job<&Job::give>)) {
    gpu().at_once(call_job<&Job::give>, hold(job_));
  }
}

void Evaluation::collect_results(Arguments results) {
  for_each_result(results, [this](const at::Tensor& tensor, bool of_argument, std::size_t place,
                                  std::size_t in_list, bool keeps) {
    Job::Result& result = job_->results.emplace_back();
    if (result.slot.layout.describe(tensor)) {
      const std::int64_t elements = result.slot.layout.elements();
      job_->result_elements += elements;
      job_->largest = std::max(job_->largest, elements);
      result.slot.of_argument = of_argument;
      result.slot.place = place;
      result.slot.in_list = in_list;
      result.keeps = keeps;
    } else {
      job_->results.pop_back();
    }
  });
}

void Evaluation::choose() {
  Job& job = *job_;
  if (job.ran || !job.computable) {
    return;
  }
  const auto most = [&](std::int64_t elements) {
    return job.input_elements <= elements && job.result_elements <= elements;
  };
  job.value_if_known = traits_.by_element ||
                       (traits_.costly ? most(kMaxCostlyElements) : job.largest <= kMaxElements);
  const bool gives_numbers =
      std::any_of(job.results.begin(), job.results.end(),
                  [](const Job::Result& result) { return is_number(result.slot.layout); });
  const bool agrees = job.agrees || (!gives_numbers && !job.positions);
  const bool is_small = traits_.by_element || traits_.costly ? most(kMaxUnknownElements)
                                                             : job.largest <= kMaxUnknownElements;
  job.value_if_unknown =
      job.takes_unknown && (agrees ? is_small : most(kMaxUnknownNumbers) && !job.positions);
  job.value_if_of_masks = !traits_.costly && !job.positions && is_small;
}

void Evaluation::take_arguments() {
  if (job_->computable) {
    const bool in_vain = job_->taken && !job_->has_value_if_taken();  // known in eager time
    job_->computable = !in_vain && job_->host.take_arguments(kept_);
  }
}

bool Evaluation::ends_unknown(Arguments results) {
  for_each_argument(kept_, [this](const at::Tensor& tensor, std::size_t, std::size_t, bool) {
    device_ = device_ < 0 && tensor.is_cuda() ? tensor.device().index() : device_;
  });
  struct Attempt {
    const Evaluation& evaluation;
    Arguments results;
    bool succeeds = false;
  } attempt{*this, results};
  const auto give = [](void* argument) {
    auto& tried = *static_cast<Attempt*>(argument);
    tried.succeeds = tried.evaluation.give_unknown(tried.results);
  };
  const bool in_time =
      device_ >= 0 && gpu().in_order_if_eager(device_, current_stream, give, &attempt) == 0;
  return in_time && attempt.succeeds;
}

bool Evaluation::give_unknown(Arguments results) const {
  // Kept, because making one takes longer than describing a tensor. Never destroyed: threads may outlive
  // the library's statics.
  static DeviceTensor& tensor = *new DeviceTensor;
  Facts facts;
  Identity identity(identity_of(kept_));
  Inputs inputs;
  bool possible = true;
  std::size_t count = 0;
  const auto add = [&](const at::Tensor& input, std::size_t place, std::size_t in_list,
                       bool overwritten) {
    if (overwritten || !possible) {
      return;
    }
    facts.input_elements += input.numel();
    if (!input.is_cuda()) {
      return;
    }
    possible =
        input.device().index() == device_ && ++count <= kMaxIdentified && tensor.describe(input);
    if (!possible) {
      return;
    }
    const auto [origins, of_all] = tensor.origins();
    const bool is_unknown = of_all.least == FERRO_SIM_UNKNOWN;
    possible = origins.size() == 1 && of_all.least == of_all.most &&
               (!is_unknown || origins[0].origin.of_masks == 0);
    if (!possible) {
      return;
    }
    add_input(identity, place, in_list, tensor, origins);
    if (is_number(tensor)) {
      inputs.add_number(tensor, of_all.least, origins);
    } else {
      inputs.add_other(traits_, of_all.least);
    }
    possible = !inputs.lows && (is_unknown || !traits_.moves);
  };
  for_each_argument(kept_, add);
  if (!possible || inputs.of_numbers != FERRO_SIM_UNKNOWN ||
      facts.input_elements <= kMaxUnknownNumbers) {
    return false;
  }
  facts.certainty = FERRO_SIM_UNKNOWN;
  facts.identity = identity.value();
  if (traits_.passes_numbers) {
    facts.extremes = extremes_of(op_.schema(), kept_);
  }
  facts.find_origin(traits_, inputs);
  if (facts.origin.has_lows != 0) {
    return false;
  }
  for_each_result(results, [&](const at::Tensor& result, bool of_argument, std::size_t place,
                               std::size_t in_list, bool keeps) {
    if (tensor.describe(result)) {
      tensor.forget(keeps, facts.origin_of(/*seed=*/0, of_argument, place, in_list));
    }
  });
  return true;
}

bool Evaluation::take_late() {
  const auto take_and_give = [](void* self) {
    auto& evaluation = *static_cast<Evaluation*>(self);
    evaluation.job_->take();
    evaluation.take_arguments();
    evaluation.job_->give();
  };
  const int result = gpu().in_order_if_eager(device_, current_stream, take_and_give, this);
  if (result == 0) {
    return true;
  }
  stream_ = current_stream(device_);
  takes_ = result == 2 && submit(call_job<&Job::take>);
  job_->computable = job_->computable && takes_;
  return false;
}

void Evaluation::fit_results(Stack& stack) {
  const std::size_t first = stack.size() - traits_.returns;
  for (std::size_t i = 0; i < traits_.returns; ++i) {
    c10::IValue& result = stack[first + i];
    if (result.isBool()) {
      result = job_->host.result(i);
    }
    if (!result.isTensor() || traits_.return_is_argument[i] || !result.toTensor().is_cuda()) {
      continue;
    }
    const at::Tensor& there = result.toTensor();
    const at::Tensor host = job_->host.result(i).toTensor();
    if (there.sizes() != host.sizes()) {
      result = at::Tensor(at::detail::empty_cuda(host.sizes(), there.options()));
    }
  }
}

namespace {

struct UnsetTensor {
  DeviceTensor there;
  ferro_sim_origin origin = {0, FERRO_SIM_KNOWN, 0, 0, 0, /*is_unset=*/1};
  int device = 0;
  void* stream = nullptr;
};

void forget(void* tensor) {
  const UnsetTensor& unset = *static_cast<UnsetTensor*>(tensor);
  unset.there.forget(true, unset.origin);
}

// The same for one that the caller passed on.
void forget_queued(void* tensor) {
  forget(tensor);
  delete static_cast<UnsetTensor*>(tensor);
}

void forget_in_replays(void* tensor) {
  UnsetTensor& unset = *static_cast<UnsetTensor*>(tensor);
  unset.origin.identity = identity_in_capture(unset.origin.identity);
  unset.there.forget_in_replays(unset.device, unset.stream, unset.origin);
}

}  // namespace

void forget_unset(int device, std::uint64_t address, std::size_t bytes) {
  const c10::Device there(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes,
                       c10::DataPtr(reinterpret_cast<void*>(address), there));
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      caffe2::TypeMeta::Make<std::uint8_t>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(static_cast<std::int64_t>(bytes));
  forget_unset(tensor);
}

void forget_unset(const at::Tensor& tensor) {
  UnsetTensor unset;
  if (!unset.there.describe(tensor)) {
    return;
  }
  unset.device = tensor.device().index();
  unset.origin.identity = Identity().add_all(tensor.sizes()).add_all(tensor.strides()).value();
  const int result = gpu().in_order_if_eager(unset.device, current_stream, forget, &unset);
  if (result == 0) {
    return;
  }
  unset.stream = current_stream(unset.device);
  if (result == 2) {
    auto queued = std::make_unique<UnsetTensor>(unset);
    if (gpu().in_order(unset.device, unset.stream, forget_queued, queued.get()) == 0) {
      static_cast<void>(queued.release());
      return;
    }
  }
  gpu().at_once(forget_in_replays, &unset);
}

}  // namespace ferro::values
