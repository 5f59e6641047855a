#include "values/host_copies.h"

#include "values/device_tensor.h"
#include "values/gpu.h"
#include "values/identity.h"

#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

namespace ferro::values {
namespace {

using HostStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// What is known about bytes of a storage.
struct Fact {
  std::size_t end = 0;
  ferro_sim_certainty certainty = FERRO_SIM_UNKNOWN;
  ferro_sim_origin origin = {};
  std::size_t offset = 0;  // of the first byte in the origin
};
using Facts = std::map<std::size_t, Fact>;  // by the first byte; they do not overlap

Facts::iterator first_ending_after(Facts& facts, std::size_t begin) {
  const auto next = facts.upper_bound(begin);
  return next != facts.begin() && std::prev(next)->second.end > begin ? std::prev(next) : next;
}

void set(Facts& facts, std::size_t begin, const Fact& fact) {
  for (auto at = first_ending_after(facts, begin); at != facts.end() && at->first < fact.end;) {
    const auto [first, before] = *at;
    at = facts.erase(at);
    if (first < begin) {
      facts[first] = {begin, before.certainty, before.origin, before.offset};
    }
    if (before.end > fact.end) {
      facts[fact.end] = {before.end, before.certainty, before.origin,
                         before.offset + (fact.end - first)};
    }
  }
  facts[begin] = fact;
}

// Calls `visit(begin, bytes, fact, offset)` for each part of the range of which something is known.
template <typename Visit>
void for_each_fact(Facts& facts, std::size_t begin, std::size_t bytes, const Visit& visit) {
  const std::size_t end = begin + bytes;
  for (auto at = first_ending_after(facts, begin); at != facts.end() && at->first < end; ++at) {
    const std::size_t from = std::max(at->first, begin);
    visit(from, std::min(at->second.end, end) - from, at->second,
          at->second.offset + (from - at->first));
  }
}

struct Remembered {
  HostStorage storage;
  std::uint32_t version = 0;
  Facts facts = {};
};

// The references keep the keys of freed storages from others. Used with the machine locked.
using Storages = std::unordered_map<const c10::StorageImpl*, Remembered>;
Storages& storages() {
  static auto* const all = new Storages;
  return *all;
}
// Their number, which is read without the lock.
std::atomic<std::size_t> remembered = 0;

// One copy, in the order of its stream.
struct Move {
  HostStorage storage;
  DeviceTensor there = {};
  std::uint32_t version = 0;  // before the operator counts
  // The bytes of the host's tensor, from its first element to its last.
  std::size_t begin = 0;
  std::size_t bytes = 0;
  bool is_exact = false;  // the bytes have the same order on both sides
};

bool same_order(const at::Tensor& one, const at::Tensor& other) {
  bool same = one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes() &&
              one.is_non_overlapping_and_dense() && other.is_non_overlapping_and_dense() &&
              one.is_conj() == other.is_conj() && one.is_neg() == other.is_neg();
  for (std::int64_t i = 0; same && i < one.dim(); ++i) {
    same = one.size(i) == 1 || one.stride(i) == other.stride(i);
  }
  return same;
}

// The operator itself counts as one write, unless it is part of another one such as `.cpu()`: then the
// first write after that one goes unnoticed.
bool is_unchanged(const Remembered& host, std::uint32_t version) {
  return version - host.version <= 1;
}

void remove_freed() {
  static std::size_t most = 64;
  if (storages().size() > most) {
    std::erase_if(storages(), [](const auto& each) { return each.second.storage.expired(); });
    most = std::max<std::size_t>(64, 2 * storages().size());
  }
}

// One origin for bytes that have several, or lie in another order.
class Mixed {
 public:
  void add(const ferro_sim_origin& origin, std::size_t offset, std::size_t bytes) {
    identity_.add(origin.identity).add(offset).add(bytes);
    all_finite_ = all_finite_ && origin.infinities == FERRO_SIM_KNOWN;
  }
  ferro_sim_origin origin() const {
    return {identity_.value(), all_finite_ ? FERRO_SIM_KNOWN : FERRO_SIM_UNKNOWN, 0, 0};
  }

 private:
  Identity identity_;
  bool all_finite_ = true;
};

void remember(const Move& move) {
  const auto [origins, of_span] = move.there.origins();
  const ferro_sim_certainty least = move.there.certainty(of_span.least);
  Remembered& host = storages()
                         .try_emplace(move.storage._unsafe_get_target(), Remembered{move.storage})
                         .first->second;
  if (!is_unchanged(host, move.version)) {
    host.facts.clear();
  }
  host.version = move.version;
  Mixed mixed;
  std::size_t done = 0;
  for (const ferro_sim_origin_piece& piece : origins) {
    mixed.add(piece.origin, piece.offset, piece.bytes);
    if (move.is_exact) {
      const int is = gpu().least_certainty(move.there.address() + done, piece.bytes);
      set(host.facts, move.begin + done,
          {move.begin + done + piece.bytes,
           static_cast<ferro_sim_certainty>(std::max<int>(is, FERRO_SIM_UNKNOWN)), piece.origin,
           piece.offset});
      done += piece.bytes;
    }
  }
  // Only the first ones of very many origins are listed.
  if (done < move.bytes) {
    set(host.facts, move.begin + done, {move.begin + move.bytes, least, mixed.origin(), done});
  }
  remove_freed();
  remembered.store(storages().size(), std::memory_order_relaxed);
}

void restore(const Move& move) {
  const auto found = storages().find(move.storage._unsafe_get_target());
  if (found == storages().end() || !is_unchanged(found->second, move.version)) {
    return;
  }
  Facts& facts = found->second.facts;
  if (!move.is_exact) {
    Mixed mixed;
    ferro_sim_certainty least = FERRO_SIM_KNOWN;
    for_each_fact(facts, move.begin, move.bytes,
                  [&](std::size_t, std::size_t bytes, const Fact& fact, std::size_t offset) {
                    mixed.add(fact.origin, offset, bytes);
                    least = std::min(least, fact.certainty);
                  });
    if (least != FERRO_SIM_KNOWN) {
      move.there.forget(true, mixed.origin());
    }
    return;
  }
  for_each_fact(facts, move.begin, move.bytes,
                [&](std::size_t begin, std::size_t bytes, const Fact& fact, std::size_t offset) {
                  const std::uint64_t address = move.there.address() + (begin - move.begin);
                  if (fact.certainty != FERRO_SIM_KNOWN) {
                    gpu().write(address, nullptr, bytes, fact.certainty, 1);
                  }
                  gpu().originate(address, bytes, &fact.origin, offset);
                });
}

template <void (*act)(const Move&)>
void perform(void* held) {
  const std::unique_ptr<Move> move(static_cast<Move*>(held));
  act(*move);
}

}  // namespace

std::optional<HostCopy> HostCopy::of(c10::ArrayRef<c10::IValue> arguments) {
  if (!arguments[0].isTensor() || !arguments[1].isTensor()) {
    return std::nullopt;
  }
  const at::Tensor& to = arguments[0].toTensor();
  const at::Tensor& from = arguments[1].toTensor();
  const bool up = to.is_cuda();
  const at::Tensor& host = up ? from : to;
  if (up == from.is_cuda() || !host.is_cpu() || !host.has_storage() || host.numel() == 0 ||
      (up && remembered.load(std::memory_order_relaxed) == 0)) {
    return std::nullopt;
  }
  return HostCopy(to, from);
}

void HostCopy::note() const {
  const bool up = to_.is_cuda();
  const at::Tensor& device = up ? to_ : from_;
  const at::Tensor& host = up ? from_ : to_;
  auto move = std::make_unique<Move>(Move{host.storage().getWeakStorageImpl()});
  if (!move->there.describe(device)) {
    return;
  }
  std::int64_t last = 0;
  for (std::int64_t i = 0; i < host.dim(); ++i) {
    last += (host.size(i) - 1) * host.stride(i);
  }
  move->version = host.is_inference() ? 0 : host._version();
  move->begin = static_cast<std::size_t>(host.storage_offset()) * host.element_size();
  move->bytes = static_cast<std::size_t>(last + 1) * host.element_size();
  move->is_exact = same_order(to_, from_);
  const auto index = device.device().index();
  void* const stream = c10::cuda::getCurrentCUDAStream(index).stream();
  if (gpu().in_order(index, stream, up ? perform<restore> : perform<remember>, move.get()) == 0) {
    static_cast<void>(move.release());
  }
}

}  // namespace ferro::values
