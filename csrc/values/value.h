// A value that an operator gives to a part of device memory: a node of a graph, computed at first
// use.
//
// An operator on known inputs is recorded (`Recipe`: the operator, its host-side arguments, and the
// pieces of memory contents that its inputs were), and memory holds its results as contents that are
// not computed yet. Contents never change: an operator that writes in place, a copy or a fill gives
// the memory other contents, and recipes keep those that they took. So nothing is computed before
// the host reads (a copy to the host, `.item()`, a size that depends on values), and then exactly
// what those bytes descend from, in the order of recording. A value is freed when neither memory nor
// a recipe holds it: its memory was overwritten or unmapped. A recipe that has run releases its
// inputs.
//
// Limits, beyond which results are unknown, or a value cannot be computed and its bytes turn unknown
// when they are read: `kMaxElements` of an operator's input or result; half of the host's memory
// for all computed values. Values without inputs (fills, random numbers) beyond `kMaxKeptBytes` bytes are
// computed again when they are read again. When more than `kMaxWaiting` recipes have not run, the
// oldest ones that are small run.
//
// Used with the machine locked; the counters are read without.
#pragma once

#include "values/choices.h"
#include "values/device_tensor.h"
#include "values/host_operator.h"
#include "values/pieces.h"

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace ferro::values {

inline constexpr std::int64_t kMaxElements = std::int64_t{512} << 20;
inline constexpr std::size_t kMaxKeptBytes = std::size_t{1} << 30;
inline constexpr std::size_t kMaxWaiting = 50'000;

// What values are computed from. Exists as long as one of them is not computed, or could be again.
class Recipe {
 public:
  explicit Recipe(HostOperator host);
  explicit Recipe(DrawnPositions positions);
  // Of a mask that is the same everywhere.
  explicit Recipe(bool mask);
  ~Recipe();
  Recipe(const Recipe&) = delete;
  Recipe& operator=(const Recipe&) = delete;

  // Runs the oldest ones while too many wait. False: too many wait all the same.
  static bool make_room();
  // Runs it, and before it what its inputs need.
  void compute(const std::shared_ptr<Recipe>& self);

 private:
  friend class Value;
  Recipe();
  void run_alone();
  bool run();
  void for_each_input(const std::function<void(Value&)>& visit) const;
  bool is_repeatable() const;
  // Bytes that running it takes, about.
  std::size_t cost() const;
  void stop_waiting();

  const std::uint64_t number_;
  std::uint64_t visited_ = 0;
  std::optional<HostOperator> host_;
  std::optional<DrawnPositions> positions_;
  std::optional<bool> mask_;
  c10::SmallVector<Value*, 2> values_;  // that are not computed
  std::optional<std::list<Recipe*>::iterator> waiting_;
};

class Value : public ferro_sim_contents {
 public:
  // Where and as what a result of a recipe is wanted.
  struct Slot {
    DeviceTensor layout;
    // The argument or result whose value it is, and its place in a list.
    bool of_argument = false;
    std::size_t place = 0;
    std::size_t in_list = 0;
  };
  static Value* make(std::shared_ptr<Recipe> recipe, const Slot& slot,
                     const ferro_sim_origin& from);
  // The bytes of an interleaved result, from its first element to its last: what was there, under the
  // result.
  static Value* make(std::shared_ptr<Recipe> recipe, const Slot& slot, const ferro_sim_origin& from,
                     DeviceTensor::Span under);
  // Of a tensor that `lay_out` returned.
  static Value* make(at::Tensor computed, const ferro_sim_origin& from);

  // Null for contents of another kind.
  static Value* of(ferro_sim_contents* contents);
  std::size_t bytes() const;
  // The tensor with the bytes, computed now; undefined if they cannot be computed.
  const at::Tensor& compute();
  // The same for the only holder, who may write to it.
  std::optional<at::Tensor> take_over();

 private:
  friend class Recipe;
  Value();
  ~Value();
  static const void* bytes_of(ferro_sim_contents* self);
  static std::size_t computed_bytes_of(ferro_sim_contents* self);
  static void destroy(ferro_sim_contents* self);
  static const ferro_sim_contents_kind kKind;
  std::optional<at::Tensor> lay_out(const at::Tensor& result);
  void set(std::optional<at::Tensor> computed, bool again);
  void drop();

  std::shared_ptr<Recipe> recipe_;  // null once it has run, unless it can run again
  std::optional<Slot> slot_;
  std::optional<DeviceTensor::Span> under_;
  at::Tensor computed_;
  std::optional<std::list<Value*>::iterator> kept_;  // is computed, and could be again
};

// Holds a value.
class ValueRef {
 public:
  explicit ValueRef(Value* value) : value_(value) { ++value_->references; }
  ValueRef(ValueRef&& other) noexcept : value_(std::exchange(other.value_, nullptr)) {}
  ~ValueRef();
  ValueRef(const ValueRef&) = delete;
  ValueRef& operator=(const ValueRef&) = delete;
  Value& operator*() const { return *value_; }
  Value* operator->() const { return value_; }

 private:
  Value* value_;
};

// Numbers for tests.
struct ValueCounts {
  std::uint64_t recorded = 0;  // recipes so far
  std::uint64_t computed = 0;  // of these, runs
  std::uint64_t waiting = 0;   // recipes that have not run and may still
  std::uint64_t values = 0;    // that memory or recipes hold
  std::uint64_t bytes = 0;     // of computed values
};
ValueCounts value_counts();

// Which bytes were read, since the last call, of values that are unknown and follow from masks of
// unknown numbers: "fewest" for zeros, as of the sum of a mask that is false everywhere, and "zeros" for
// others, which the assumption that unknown numbers are zeros gave. Empty if none were read.
const char* take_mask_reads();

// Values that are alive when the process ends are leaked: the libraries that free them may have
// ended before the machine.
void leak_values_at_exit();

}  // namespace ferro::values
