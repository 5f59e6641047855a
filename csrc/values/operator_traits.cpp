#include "values/operator_traits.h"

#include "values/identity.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <string_view>

namespace ferro::values {
namespace {

using std::string_view;

template <std::size_t n>
bool is_one_of(string_view name, const string_view (&names)[n]) {
  return std::find(names, names + n, name) != names + n;
}

constexpr string_view kUnset[] = {"aten::empty", "aten::empty_strided",
                                  "aten::_empty_affine_quantized",
                                  "aten::_empty_per_channel_affine_quantized"};
// The last one moves weights by copies, which are evaluated themselves.
constexpr string_view kNothing[] = {"aten::set_",
                                    "aten::resize_",
                                    "aten::_resize_output_",
                                    "aten::is_set_to",
                                    "aten::record_stream",
                                    "aten::_pin_memory",
                                    "aten::is_pinned",
                                    "aten::_cudnn_rnn_flatten_weight"};
constexpr string_view kReads[] = {"aten::_local_scalar_dense"};
// They read the values that determine their sizes through other operators. `linalg_lstsq` has none on
// the GPU, and `_ctc_loss` follows lengths that are on the host.
constexpr string_view kSizedByOthers[] = {"aten::masked_select",     "aten::index",
                                          "aten::repeat_interleave", "aten::bincount",
                                          "aten::linalg_lstsq",      "aten::_ctc_loss"};
constexpr string_view kPositions[] = {
    "aten::argmax",    "aten::argmin", "aten::topk",   "aten::sort",       "aten::argsort",
    "aten::kthvalue",  "aten::mode",   "aten::cummax", "aten::cummin",     "aten::median",
    "aten::nanmedian", "aten::max",    "aten::min",    "aten::multinomial"};

constexpr string_view kTests[] = {
    "aten::eq",          "aten::ne",         "aten::lt",          "aten::le",
    "aten::gt",          "aten::ge",         "aten::isnan",       "aten::isinf",
    "aten::isposinf",    "aten::isneginf",   "aten::isfinite",    "aten::isin",
    "aten::logical_and", "aten::logical_or", "aten::logical_xor", "aten::logical_not",
    "aten::any",         "aten::all",        "aten::signbit",     "aten::searchsorted",
    "aten::bucketize",   "aten::copy_",      "aten::_to_copy",    "aten::count_nonzero",
    "aten::isclose"};

// They give masks, if their results are booleans.
constexpr string_view kComparing[] = {
    "aten::eq",       "aten::ne",      "aten::lt",    "aten::le",       "aten::gt",
    "aten::ge",       "aten::isin",    "aten::isinf", "aten::isposinf", "aten::isneginf",
    "aten::isfinite", "aten::signbit", "aten::copy_", "aten::_to_copy"};
constexpr string_view kTruths[] = {"aten::any", "aten::all", "aten::logical_not",
                                   "aten::count_nonzero"};

constexpr string_view kPassing[] = {"aten::copy_",
                                    "aten::_to_copy",
                                    "aten::clone",
                                    "aten::fill_",
                                    "aten::masked_fill",
                                    "aten::masked_fill_",
                                    "aten::where",
                                    "aten::mul",
                                    "aten::mul_",
                                    "aten::div",
                                    "aten::div_",
                                    "aten::cat",
                                    "aten::stack",
                                    "aten::index",
                                    "aten::index_select",
                                    "aten::gather",
                                    "aten::index_put",
                                    "aten::index_put_",
                                    "aten::_index_put_impl_",
                                    "aten::index_fill",
                                    "aten::index_fill_",
                                    "aten::scatter",
                                    "aten::scatter_",
                                    "aten::triu",
                                    "aten::tril",
                                    "aten::flip",
                                    "aten::_softmax",
                                    "aten::sigmoid",
                                    "aten::add",
                                    "aten::add_",
                                    "aten::sub",
                                    "aten::sub_",
                                    "aten::maximum",
                                    "aten::minimum",
                                    "aten::abs",
                                    "aten::neg",
                                    "aten::neg_",
                                    "aten::_log_softmax"};
constexpr string_view kLosingSign[] = {"aten::add", "aten::add_", "aten::sub",         "aten::sub_",
                                       "aten::neg", "aten::neg_", "aten::_log_softmax"};
constexpr string_view kFinite[] = {"aten::_softmax", "aten::sigmoid", "aten::tanh",
                                   "aten::nan_to_num"};
constexpr string_view kPositive[] = {"aten::_softmax", "aten::sigmoid", "aten::exp",
                                     "aten::softplus"};

// They move elements, without arithmetic.
constexpr string_view kMoving[] = {"aten::cat",
                                   "aten::where",
                                   "aten::gather",
                                   "aten::take",
                                   "aten::index",
                                   "aten::index_select",
                                   "aten::index_put",
                                   "aten::index_put_",
                                   "aten::_index_put_impl_",
                                   "aten::index_copy",
                                   "aten::index_copy_",
                                   "aten::index_fill",
                                   "aten::index_fill_",
                                   "aten::scatter",
                                   "aten::scatter_",
                                   "aten::masked_fill",
                                   "aten::masked_fill_",
                                   "aten::flip",
                                   "aten::roll",
                                   "aten::channel_shuffle",
                                   "aten::triu",
                                   "aten::triu_",
                                   "aten::tril",
                                   "aten::tril_",
                                   "aten::reflection_pad1d",
                                   "aten::reflection_pad2d",
                                   "aten::reflection_pad3d",
                                   "aten::replication_pad1d",
                                   "aten::replication_pad2d",
                                   "aten::replication_pad3d"};
// Each element of their results follows from one element of each input, or of each selector, but they
// are not tagged as pointwise.
constexpr string_view kByElement[] = {
    "aten::copy_",         "aten::complex",     "aten::polar", "aten::floor_divide",
    "aten::rsub",          "aten::gather",      "aten::take",  "aten::masked_fill",
    "aten::floor_divide_", "aten::masked_fill_"};
// Arguments of operators that draw random numbers.
constexpr string_view kTraining[] = {"train", "training"};
constexpr string_view kProbabilities[] = {"p", "dropout", "dropout_p"};
constexpr string_view kSelectors[] = {"condition", "index", "indices", "mask"};

// They overwrite their first argument.
constexpr string_view kOverwriting[] = {
    "aten::fill_",         "aten::zero_",        "aten::uniform_",   "aten::normal_",
    "aten::random_",       "aten::bernoulli_",   "aten::geometric_", "aten::log_normal_",
    "aten::cauchy_",       "aten::exponential_", "aten::copy_",      "aten::_foreach_zero_",
    "aten::_foreach_copy_"};
// They overwrite all arguments that they write to.
constexpr string_view kFilling[] = {"aten::_cummax_helper", "aten::_cummin_helper",
                                    "aten::rrelu_with_noise"};

// They add a product to their first argument, times `beta`.
constexpr string_view kAddingProducts[] = {
    "aten::addmm",  "aten::addmm_",           "aten::addmv",
    "aten::addmv_", "aten::baddbmm",          "aten::baddbmm_",
    "aten::addbmm", "aten::addbmm_",          "aten::addr",
    "aten::addr_",  "aten::_addmm_activation"};

// Parts of names of operators whose cost grows faster than their tensors.
constexpr string_view kCostly[] = {
    "aten::mm",   "addmm", "bmm",      "_mm",         "addmv",      "aten::mv",   "aten::dot",
    "aten::vdot", "conv",  "cudnn_",   "attention",   "linalg_",    "cholesky",   "aten::lu_",
    "triangular", "geqrf", "ormqr",    "householder", "lstm",       "gru_",       "rnn_",
    "cdist",      "pdist", "ctc_loss", "_fft_",       "matrix_exp", "transformer"};

bool is_costly(string_view base) {
  return base != "aten::linalg_vector_norm" && base.find("grid_sampler") == base.npos &&
         base.find("_convert_indices_") == base.npos &&
         std::any_of(std::begin(kCostly), std::end(kCostly),
                     [&](string_view part) { return base.find(part) != base.npos; });
}

// Statistics that a normalization updates although its schema does not say so.
bool is_kept_up(string_view base, string_view argument) {
  return (argument == "running_mean" || argument == "running_var") &&
         base.find("batch_norm") != base.npos && base.find("backward") == base.npos;
}

bool is_tensor(const c10::Argument& argument) {
  const auto& type = *argument.type();
  return type.isSubtypeOf(*c10::TensorType::get()) || type.isSubtypeOf(*c10::ListType::ofTensors());
}

// Many operators that work in place are not tagged, while those that return a result are.
bool is_pointwise(const c10::OperatorHandle& op) {
  c10::OperatorName name = op.operator_name();
  if (op.hasTag(at::Tag::pointwise) || !name.name.ends_with('_')) {
    return op.hasTag(at::Tag::pointwise);
  }
  name.name.pop_back();
  const auto other = c10::Dispatcher::singleton().findSchema(name);
  return other && other->hasTag(at::Tag::pointwise);
}

std::optional<Positions> positions_of(string_view base, const c10::FunctionSchema& schema) {
  if (!is_one_of(base, kPositions)) {
    return std::nullopt;
  }
  if (const auto place = schema.argumentIndexWithName("dim")) {
    return Positions{static_cast<std::size_t>(*place)};
  }
  // Without a dimension, the other operators return values.
  return base == "aten::multinomial" ? std::optional(Positions{}) : std::nullopt;
}

Rows rows_of(string_view base) {
  // See `sparse_operators.cpp`.
  if (base == "ferro_sim::selected_indices") {
    return Rows::kColumns;
  }
  if (base == "ferro_sim::coalesced_indices" || base == "ferro_sim::softmax_pools") {
    return Rows::kDistinctColumns;
  }
  if (base == "ferro_sim::product_places") {
    return Rows::kProduct;
  }
  if (base == "ferro_sim::sum_places") {
    return Rows::kSum;
  }
  return base == "aten::_unique" || base == "aten::_unique2" ? Rows::kDistinctOrTrue
         : base == "aten::unique_dim"                        ? Rows::kDistinct
         : base == "aten::unique_consecutive" || base == "aten::unique_dim_consecutive"
             ? Rows::kRuns
         : base == "torchvision::nms" ? Rows::kBoxes
                                      : Rows::kNotZero;
}

Kind kind_of(string_view base, const c10::OperatorHandle& op, const OperatorTraits& traits) {
  const auto& schema = op.schema();
  if (is_one_of(base, kReads)) {
    return Kind::kReads;
  }
  if (is_one_of(base, kUnset)) {
    return Kind::kUnset;
  }
  const bool view =
      traits.written.empty() &&
      std::any_of(schema.returns().begin(), schema.returns().end(),
                  [](const c10::Argument& result) { return result.alias_info() != nullptr; });
  if (view && base.starts_with("aten::")) {
    return Kind::kView;
  }
  // FSDP's operators call others, which are computed.
  if (view || is_one_of(base, kNothing) || base.starts_with("fsdp::")) {
    return Kind::kNothing;
  }
  if (base == "aten::copy_" || base == "aten::_foreach_copy_") {
    return Kind::kCopy;
  }
  if (base.starts_with("c10d::")) {
    return Kind::kTransfer;
  }
  if (!base.starts_with("aten::") && !base.starts_with("ferro_sim::") &&
      base != "torchvision::nms" && base != "torchvision::roi_align" &&
      base != "torchvision::roi_pool") {
    return Kind::kElsewhere;
  }
  const bool sized = rows_of(base) != Rows::kNotZero || base == "aten::equal" ||
                     op.hasTag(at::Tag::dynamic_output_shape);
  if (sized && !is_one_of(base, kSizedByOthers)) {
    return Kind::kDataSized;
  }
  const bool gives = !traits.written.empty() ||
                     std::any_of(schema.returns().begin(), schema.returns().end(), is_tensor);
  return gives ? Kind::kPlain : Kind::kNothing;
}

}  // namespace

OperatorTraits traits_of(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  OperatorTraits traits;
  const std::string base = op.operator_name().name;
  traits.name = c10::toString(op.operator_name());
  traits.arguments = schema.arguments().size();
  traits.returns = schema.returns().size();
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const bool is_statistic = is_kept_up(base, schema.arguments()[i].name());
    if (is_statistic) {
      traits.statistics.push_back(i);
    }
    if ((alias != nullptr && alias->isWrite()) || is_statistic) {
      traits.written.push_back(i);
      if (schema.arguments()[i].kwarg_only() || (i == 0 && is_one_of(base, kOverwriting)) ||
          (i == 1 && base == "aten::rrelu_with_noise_") || is_one_of(base, kFilling)) {
        traits.overwritten.push_back(i);
      }
    }
    if (schema.arguments()[i].name() == "beta" && is_one_of(base, kAddingProducts)) {
      traits.factor = i;
    }
    traits.generator |= schema.arguments()[i].name() == "generator";
  }
  for (const c10::Argument& result : schema.returns()) {
    traits.return_is_argument.push_back(result.alias_info() != nullptr);
  }
  traits.random = traits.generator || op.hasTag(at::Tag::nondeterministic_seeded);
  for (std::size_t i = 0; traits.random && i < traits.arguments; ++i) {
    const std::string& name = schema.arguments()[i].name();
    if (is_one_of(name, kTraining)) {
      traits.trains = i;
    } else if (is_one_of(name, kProbabilities) &&
               schema.arguments()[i].type()->kind() == c10::TypeKind::FloatType) {
      traits.probability = i;
    }
  }
  traits.kind = kind_of(base, op, traits);
  if (traits.kind == Kind::kElsewhere && traits.returns == 0 && traits.written.empty()) {
    // It does something, so its schema leaves out what it writes.
    for (std::size_t i = 0; i < traits.arguments; ++i) {
      traits.written.push_back(i);
    }
  }
  traits.computable = traits.kind != Kind::kElsewhere && traits.kind != Kind::kTransfer &&
                      op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  traits.rows = rows_of(base);
  if (base.starts_with("aten::unique_")) {
    traits.unique_along = schema.argumentIndexWithName("dim");
  }
  if (base == "aten::bincount") {
    traits.least_size = schema.argumentIndexWithName("minlength");
  }
  traits.assumes_true = base == "aten::_is_all_true";
  traits.checks_success = base == "aten::_linalg_check_errors";
  traits.computes_on_host = base == "aten::linalg_lstsq";
  traits.reads_to_check = traits.checks_success || base == "aten::normal" ||
                          base.starts_with("aten::linalg_eig") ||
                          base.starts_with("aten::fake_quantize_per_");
  traits.zeroes_unknown = base == "ferro_sim::launch";
  const bool overwrites_first =
      traits.written.size() == 1 && traits.written[0] == 0 && traits.overwrites(0);
  traits.leaves_inputs = !traits.random && traits.arguments > 0 &&
                         (traits.kind == Kind::kPlain || traits.kind == Kind::kCopy) &&
                         (traits.written.empty() || overwrites_first);
  traits.searches = base == "aten::mode";
  traits.sorts_in_place = base == "aten::median" || base == "aten::nanmedian";
  traits.tests = is_one_of(base, kTests);
  traits.compares = is_one_of(base, kComparing);
  traits.tests_truth = is_one_of(base, kTruths);
  traits.tests_equality = traits.arguments == 2 && !op.operator_name().overload_name.empty() &&
                          (base == "aten::eq" || base == "aten::ne");
  traits.tests_nan = base == "aten::isnan";
  traits.costly = is_costly(base);
  traits.resizes = base == "aten::resize_";
  traits.by_element = base.starts_with("aten::_foreach_");
  for (const c10::Argument& argument : schema.arguments()) {
    traits.argument_is_list.push_back(argument.type()->kind() == c10::TypeKind::ListType);
  }
  traits.hash = Identity().add(string_view(traits.name)).value();
  traits.passes_numbers = is_one_of(base, kPassing);
  traits.keeps_sign = traits.passes_numbers && !is_one_of(base, kLosingSign);
  traits.gives_positive = is_one_of(base, kPositive);
  traits.gives_finite = is_one_of(base, kFinite);
  if ((traits.kind == Kind::kPlain || traits.kind == Kind::kCopy) && !traits.random &&
      !traits.by_element) {
    traits.works_by_element = is_pointwise(op) || is_one_of(base, kByElement);
    traits.moves = is_one_of(base, kMoving) && !schema.argumentIndexWithName("reduce");
  }
  for (std::size_t i = 0; traits.moves && i < schema.arguments().size(); ++i) {
    if (is_one_of(schema.arguments()[i].name(), kSelectors)) {
      traits.selectors.push_back(i);
    }
  }
  traits.multiplies = base == "aten::mul" || base == "aten::mul_";
  traits.positions = positions_of(base, schema);
  traits.may_keep_infinities = (traits.works_by_element || traits.moves || traits.positions) &&
                               !traits.gives_finite && !traits.gives_positive;
  traits.passes_unknown = traits.leaves_inputs && !traits.by_element && !traits.tests &&
                          !traits.compares && !traits.tests_truth && !traits.tests_equality &&
                          !traits.tests_nan && !traits.assumes_true && !traits.zeroes_unknown &&
                          !traits.positions && traits.statistics.empty();
  return traits;
}

}  // namespace ferro::values
