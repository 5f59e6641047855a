#include "values/value.h"

#include "values/below_modes.h"
#include "values/gpu.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstdlib>
#include <unistd.h>
#include <utility>

namespace ferro::values {
namespace {

// Of those that wait too long; larger ones are left waiting.
constexpr std::size_t kSmallCost = 32 << 20;
// Values without inputs that are smaller are kept for good.
constexpr std::size_t kKeptBytes = 1 << 20;

// Changed with the machine locked, and read without.
class Count {
 public:
  void operator+=(std::uint64_t more) { value_.store(*this + more, std::memory_order_relaxed); }
  void operator-=(std::uint64_t fewer) { value_.store(*this - fewer, std::memory_order_relaxed); }
  operator std::uint64_t() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_ = 0;
};

// Never destroyed: values may be freed until the process ends.
struct Graph {
  std::uint64_t next_number = 1;
  std::uint64_t visits = 0;
  std::list<Recipe*> waiting;  // in the order of recording
  std::list<Recipe*> spare;    // nodes for the next ones
  std::list<Value*> kept;      // in the order of computing
  std::size_t kept_bytes = 0;
  std::vector<Value*> unheld;  // to be destroyed
  bool destroying = false;
  std::atomic<bool> ended = false;
  Count recorded;
  Count computed;
  Count waits;
  Count values;
  Count bytes;
};

Graph& graph() {
  static Graph* const instance = new Graph;
  return *instance;
}

// Which bytes were read that follow from masks since `take_mask_reads`.
std::atomic<bool> any_zeros = false;
std::atomic<bool> any_others = false;

void note_mask_bytes(const at::Tensor& computed) {
  constexpr std::size_t kMostTested = 4096;
  const auto* const bytes = static_cast<const std::byte*>(computed.const_data_ptr());
  const std::size_t tested = std::min(computed.nbytes(), kMostTested);
  const bool is_zeros =
      std::all_of(bytes, bytes + tested, [](std::byte byte) { return byte == std::byte{0}; });
  (is_zeros ? any_zeros : any_others).store(true, std::memory_order_relaxed);
}

std::size_t most_bytes() {
  static const std::size_t most = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                                  static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE)) / 2;
  return most;
}

}  // namespace

Recipe::Recipe() : number_(graph().next_number++) {
  Graph& g = graph();
  if (g.spare.empty()) {
    g.spare.emplace_back();
  }
  waiting_ = g.spare.begin();
  **waiting_ = this;
  g.waiting.splice(g.waiting.end(), g.spare, *waiting_);
  g.recorded += 1;
  g.waits += 1;
}

Recipe::Recipe(HostOperator host) : Recipe() { host_.emplace(std::move(host)); }

Recipe::Recipe(DrawnPositions positions) : Recipe() { positions_.emplace(std::move(positions)); }

Recipe::Recipe(bool mask) : Recipe() { mask_ = mask; }

Recipe::~Recipe() { stop_waiting(); }

void Recipe::stop_waiting() {
  if (waiting_) {
    Graph& g = graph();
    g.spare.splice(g.spare.begin(), g.waiting, *waiting_);
    waiting_.reset();
    g.waits -= 1;
  }
}

bool Recipe::make_room() {
  Graph& g = graph();
  if (g.waiting.size() < kMaxWaiting) {
    return true;
  }
  std::vector<std::shared_ptr<Recipe>> oldest;
  for (Recipe* const recipe : g.waiting) {
    if (oldest.size() == kMaxWaiting / 8) {
      break;
    }
    if (!recipe->values_.empty() && recipe->cost() <= kSmallCost) {
      oldest.push_back(recipe->values_.front()->recipe_);
    }
  }
  for (const auto& recipe : oldest) {
    recipe->compute(recipe);
  }
  return g.waiting.size() < 2 * kMaxWaiting;
}

void Recipe::compute(const std::shared_ptr<Recipe>& self) {
  if (values_.empty() || graph().ended) {
    return;
  }
  const std::uint64_t visit = ++graph().visits;
  std::vector<std::shared_ptr<Recipe>> order;
  std::vector<std::shared_ptr<Recipe>> found{self};
  visited_ = visit;
  while (!found.empty()) {
    order.push_back(std::move(found.back()));
    found.pop_back();
    order.back()->for_each_input([&](Value& value) {
      if (!value.computed_.defined() && value.recipe_ && value.recipe_->visited_ != visit) {
        value.recipe_->visited_ = visit;
        found.push_back(value.recipe_);
      }
    });
  }
  std::sort(order.begin(), order.end(),
            [](const auto& one, const auto& other) { return one->number_ < other->number_; });
  for (auto& recipe : order) {
    recipe->run_alone();
    recipe.reset();
  }
}

void Recipe::for_each_input(const std::function<void(Value&)>& visit) const {
  if (host_) {
    host_->for_each_input(visit);
  } else if (positions_ && positions_->from.lows) {
    positions_->from.lows->pieces.for_each_value(visit);
  }
  for (const Value* const value : values_) {
    if (value->under_) {
      value->under_->taken.pieces.for_each_value(visit);
    }
  }
}

bool Recipe::is_repeatable() const {
  if (std::any_of(values_.begin(), values_.end(),
                  [](const Value* value) { return value->under_.has_value(); })) {
    return false;
  }
  return positions_ ? !positions_->from.lows : mask_ || !host_->has_inputs();
}

std::size_t Recipe::cost() const {
  std::size_t all = host_ ? host_->bytes_to_copy() : 0;
  for (const Value* const value : values_) {
    all += value->bytes();
  }
  return all;
}

bool Recipe::run() {
  Graph& g = graph();
  if (g.bytes + cost() > most_bytes()) {
    while (!g.kept.empty()) {
      g.kept.front()->drop();
    }
    if (g.bytes + cost() > most_bytes()) {
      return false;
    }
  }
  g.computed += 1;
  return positions_ || mask_ || host_->run();
}

void Recipe::run_alone() {
  if (values_.empty()) {
    return;
  }
  const BelowModes guard;
  const bool again = is_repeatable();
  const bool ran = run();
  const auto values = std::exchange(values_, {});
  std::vector<std::optional<at::Tensor>> results(values.size());
  for (std::size_t i = 0; ran && i < values.size(); ++i) {
    const Value::Slot& slot = *values[i]->slot_;
    results[i] = positions_ ? positions_->draw()
                 : mask_    ? at::full(slot.layout.sizes(), *mask_, at::kBool)
                            : host_->value(slot.of_argument, slot.place, slot.in_list);
  }
  // Before the results are laid out: then only these hold what is under them, and may write to it.
  if (host_) {
    host_->clear(!again);
  } else if (positions_ && !again) {
    positions_->from.lows.reset();
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i]->set(results[i] ? values[i]->lay_out(*results[i]) : std::nullopt, again);
    results[i].reset();
  }
  stop_waiting();
}

const ferro_sim_contents_kind Value::kKind = {&Value::bytes_of, &Value::destroy,
                                              &Value::computed_bytes_of};

Value::Value() {
  kind = &kKind;
  references = 0;
  graph().values += 1;
}

Value* Value::make(std::shared_ptr<Recipe> recipe, const Slot& slot, const ferro_sim_origin& from) {
  auto* const value = new Value;
  value->origin = from;
  recipe->values_.push_back(value);
  value->recipe_ = std::move(recipe);
  value->slot_.emplace(slot);
  return value;
}

Value* Value::make(std::shared_ptr<Recipe> recipe, const Slot& slot, const ferro_sim_origin& from,
                   DeviceTensor::Span under) {
  Value* const value = make(std::move(recipe), slot, from);
  value->under_.emplace(std::move(under));
  return value;
}

Value* Value::make(at::Tensor computed, const ferro_sim_origin& from) {
  auto* const value = new Value;
  value->origin = from;
  value->computed_ = std::move(computed);
  graph().bytes += value->computed_.nbytes();
  return value;
}

Value* Value::of(ferro_sim_contents* contents) {
  return contents->kind == &kKind ? static_cast<Value*>(contents) : nullptr;
}

Value::~Value() {
  if (computed_.defined()) {
    drop();
  }
  if (recipe_) {
    auto& values = recipe_->values_;
    values.erase(std::remove(values.begin(), values.end(), this), values.end());
  }
  graph().values -= 1;
}

const at::Tensor& Value::compute() {
  if (!computed_.defined() && recipe_) {
    const std::shared_ptr<Recipe> recipe = recipe_;
    recipe->compute(recipe);
  }
  return computed_;
}

std::optional<at::Tensor> Value::take_over() {
  if (references != 1 || recipe_ || !computed_.defined() || computed_.storage().use_count() != 1) {
    return std::nullopt;
  }
  graph().bytes -= computed_.nbytes();
  return std::exchange(computed_, at::Tensor());
}

std::optional<at::Tensor> Value::lay_out(const at::Tensor& result) {
  if (!under_) {
    return slot_->layout.lay_out(result);
  }
  const std::size_t before = under_->before;
  std::optional<at::Tensor> span = under_->taken.compute(true);
  under_.reset();
  return span ? slot_->layout.lay_onto(*span, before, result) : std::nullopt;
}

std::size_t Value::bytes() const {
  return computed_.defined() ? computed_.nbytes()
         : under_            ? under_->taken.pieces.bytes()
                             : slot_->layout.bytes();
}

void Value::set(std::optional<at::Tensor> computed, bool again) {
  Graph& g = graph();
  under_.reset();
  if (!computed) {
    recipe_.reset();
    return;
  }
  computed_ = std::move(*computed);
  g.bytes += computed_.nbytes();
  if (!again || computed_.nbytes() < kKeptBytes) {
    recipe_.reset();
    return;
  }
  kept_ = g.kept.insert(g.kept.end(), this);
  g.kept_bytes += computed_.nbytes();
  while (g.kept_bytes > kMaxKeptBytes && g.kept.front() != this) {
    g.kept.front()->drop();
  }
}

void Value::drop() {
  Graph& g = graph();
  g.bytes -= computed_.nbytes();
  if (kept_) {
    g.kept_bytes -= computed_.nbytes();
    g.kept.erase(*kept_);
    kept_.reset();
    recipe_->values_.push_back(this);
  }
  computed_.reset();
}

const void* Value::bytes_of(ferro_sim_contents* self) {
  const at::Tensor& computed = static_cast<Value*>(self)->compute();
  if (self->origin.of_masks == FERRO_SIM_OF_MASKS && computed.defined()) {
    note_mask_bytes(computed);
  }
  return computed.defined() ? computed.const_data_ptr() : nullptr;
}

std::size_t Value::computed_bytes_of(ferro_sim_contents* self) {
  const at::Tensor& computed = static_cast<Value*>(self)->computed_;
  return computed.defined() ? computed.nbytes() : 0;
}

void Value::destroy(ferro_sim_contents* self) {
  Graph& g = graph();
  if (g.ended) {
    return;
  }
  // In a loop: a value may be the last holder of a long chain.
  g.unheld.push_back(static_cast<Value*>(self));
  if (g.destroying) {
    return;
  }
  g.destroying = true;
  while (!g.unheld.empty()) {
    Value* const value = g.unheld.back();
    g.unheld.pop_back();
    delete value;
  }
  g.destroying = false;
}

ValueRef::~ValueRef() {
  if (value_ != nullptr) {
    gpu().release(value_);
  }
}

const char* take_mask_reads() {
  const bool zeros = any_zeros.exchange(false);
  return any_others.exchange(false) ? "zeros" : zeros ? "fewest" : "";
}

ValueCounts value_counts() {
  const Graph& g = graph();
  return {g.recorded, g.computed, g.waits, g.values, g.bytes};
}

void leak_values_at_exit() {
  std::atexit([] { graph().ended = true; });
}

}  // namespace ferro::values
