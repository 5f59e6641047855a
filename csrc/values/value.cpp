#include "values/value.h"

#include "values/below_modes.h"
#include "values/gpu.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <unistd.h>
#include <utility>

namespace ferro::values {
namespace {

// Of those that wait too long; larger ones are left waiting.
constexpr std::size_t kSmallCost = 32 << 20;
// Values without inputs that are smaller are kept for good.
constexpr std::size_t kKeptBytes = 1 << 20;

// Rows of different positions below `extent`.
class RowsOfPositions {
 public:
  RowsOfPositions(std::int64_t extent, std::uint64_t seed)
      : extent_(static_cast<std::uint64_t>(extent)), state_(seed * 0xd1342543de82ef95) {}

  // Writes `length` positions, at most `extent`.
  void draw(std::int64_t length, std::int64_t* to, std::int64_t stride) {
    if (length == 1) {
      *to = static_cast<std::int64_t>(below(extent_));
    } else if (extent_ <= kMaxShuffled) {
      shuffle(length, to, stride);
    } else {
      step(length, to, stride);
    }
  }

 private:
  // Of more positions a row has a random step, which takes no memory for all of them.
  static constexpr std::uint64_t kMaxShuffled = 1 << 22;

  std::uint64_t below(std::uint64_t limit) {
    state_ += 0x9e3779b97f4a7c15;  // splitmix64
    std::uint64_t mixed = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
    mixed ^= mixed >> 31;
    return limit >> 32 == 0 ? (mixed >> 32) * limit >> 32 : mixed % limit;
  }

  // The first part of a random order of all positions. Any order can be shuffled further.
  void shuffle(std::int64_t length, std::int64_t* to, std::int64_t stride) {
    if (order_.empty()) {
      order_.resize(extent_);
      std::iota(order_.begin(), order_.end(), 0);
    }
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(length); ++i) {
      std::swap(order_[i], order_[i + below(extent_ - i)]);
      *to = order_[i];
      to += stride;
    }
  }

  void step(std::int64_t length, std::int64_t* to, std::int64_t stride) {
    std::uint64_t at = below(extent_);
    std::uint64_t by = 1 + below(extent_ - 1);
    while (std::gcd(by, extent_) != 1) {
      by = by % (extent_ - 1) + 1;
    }
    for (std::int64_t i = 0; i < length; ++i) {
      *to = static_cast<std::int64_t>(at);
      to += stride;
      at = (at + by) % extent_;
    }
  }

  const std::uint64_t extent_;
  std::uint64_t state_;
  std::vector<std::uint32_t> order_;
};

// Never destroyed: values may be freed until the process ends.
struct Graph {
  std::uint64_t next_number = 1;
  std::uint64_t visits = 0;
  std::list<Recipe*> waiting;  // in the order of recording
  std::list<Value*> kept;      // in the order of computing
  std::size_t kept_bytes = 0;
  std::vector<Value*> unheld;  // to be destroyed
  bool destroying = false;
  std::atomic<bool> ended = false;
  std::atomic<std::uint64_t> recorded = 0;
  std::atomic<std::uint64_t> computed = 0;
  std::atomic<std::uint64_t> waits = 0;
  std::atomic<std::uint64_t> values = 0;
  std::atomic<std::uint64_t> bytes = 0;
};

Graph& graph() {
  static Graph* const instance = new Graph;
  return *instance;
}

std::size_t most_bytes() {
  static const std::size_t most = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                                  static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE)) / 2;
  return most;
}

}  // namespace

at::Tensor DrawnPositions::draw() const {
  at::Tensor host = at::detail::empty_cpu(sizes, at::kLong);
  auto* to = host.mutable_data_ptr<std::int64_t>();
  std::int64_t length = 1;  // of a row
  std::int64_t stride = 1;
  if (dimension && sizes[*dimension] <= extent) {
    length = sizes[*dimension];
    for (std::size_t i = *dimension + 1; i < sizes.size(); ++i) {
      stride *= sizes[i];
    }
  }
  RowsOfPositions rows(extent, number);
  for (std::int64_t done = 0; done < host.numel(); done += length * stride) {
    for (std::int64_t i = 0; i < stride; ++i) {
      rows.draw(length, to + done + i, stride);
    }
  }
  return host;
}

Recipe::Recipe() : number_(graph().next_number++) {
  Graph& g = graph();
  waiting_ = g.waiting.insert(g.waiting.end(), this);
  ++g.recorded;
  ++g.waits;
}

Recipe::Recipe(HostOperator host) : Recipe() { host_.emplace(std::move(host)); }

Recipe::Recipe(DrawnPositions positions) : Recipe() { positions_.emplace(std::move(positions)); }

Recipe::~Recipe() {
  if (waiting_) {
    graph().waiting.erase(*waiting_);
    --graph().waits;
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
    const auto& host = order.back()->host_;
    if (!host) {
      continue;
    }
    host->for_each_input([&](Value& value) {
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

bool Recipe::is_repeatable() const { return positions_ || !host_->has_inputs(); }

std::size_t Recipe::cost() const {
  std::size_t all = host_ ? host_->bytes_to_copy() : 0;
  for (const Value* const value : values_) {
    all += value->slot_->layout.bytes();
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
  ++g.computed;
  return positions_ || host_->run();
}

void Recipe::run_alone() {
  if (values_.empty()) {
    return;
  }
  const BelowModes guard;
  const bool again = is_repeatable();
  std::vector<Value*> values;
  const bool ran = run();
  values.swap(values_);
  for (Value* const value : values) {
    const Value::Slot& slot = *value->slot_;
    std::optional<at::Tensor> result;
    if (ran) {
      result = positions_ ? positions_->draw()
                          : host_->value(slot.of_argument, slot.place, slot.in_list);
    }
    value->set(result ? slot.layout.lay_out(*result) : std::nullopt, again);
  }
  if (host_) {
    host_->clear(!again);
  }
  if (waiting_) {
    graph().waiting.erase(*waiting_);
    waiting_.reset();
    --graph().waits;
  }
}

const ferro_sim_contents_kind Value::kKind = {&Value::bytes_of, &Value::destroy};

Value::Value() {
  kind = &kKind;
  references = 0;
  ++graph().values;
}

Value* Value::make(std::shared_ptr<Recipe> recipe, Slot slot) {
  auto* const value = new Value;
  recipe->values_.push_back(value);
  value->recipe_ = std::move(recipe);
  value->slot_.emplace(std::move(slot));
  return value;
}

Value* Value::make(at::Tensor computed) {
  auto* const value = new Value;
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
    std::erase(recipe_->values_, this);
  }
  --graph().values;
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

void Value::set(std::optional<at::Tensor> computed, bool again) {
  Graph& g = graph();
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
  return computed.defined() ? computed.const_data_ptr() : nullptr;
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

ValueRef::~ValueRef() { gpu().release(value_); }

ValueCounts value_counts() {
  const Graph& g = graph();
  return {g.recorded, g.computed, g.waits, g.values, g.bytes};
}

void leak_values_at_exit() {
  std::atexit([] { graph().ended = true; });
}

}  // namespace ferro::values
