#include "values/host_copies.h"

#include "values/below_modes.h"
#include "values/device_tensor.h"
#include "values/gpu.h"
#include "values/host_facts.h"
#include "values/identity.h"

#include <ATen/EmptyTensor.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ferro::values {
namespace {

using HostStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

// Of copies with more bytes, only the beginning of each part tells whether the program changed it,
// unless nothing else does.
constexpr std::size_t kMostHashed = std::size_t{16} << 20;
constexpr std::size_t kBeginning = 4096;
// The most elements of a tensor with gaps of which some are known.
constexpr std::int64_t kMostListed = std::int64_t{1} << 22;
// The most parts of a tensor that are not equally certain, or lie apart on the host.
constexpr std::int64_t kMostParts = 64;
constexpr std::size_t kMostRuns = 4096;

struct Remembered {
  HostStorage storage;
  std::uint32_t version = 0;
  HostFacts facts = {};
};

// The references keep the keys of freed storages from others. Used with the machine locked.
using Storages = std::unordered_map<const c10::StorageImpl*, Remembered>;
Storages& storages() {
  static auto* const all = new Storages;
  return *all;
}
// Their number, which is read without the lock.
std::atomic<std::size_t> remembered = 0;

// A tensor on the host, without its memory.
struct HostLayout {
  at::DimVector sizes = {};
  at::DimVector strides = {};
  std::size_t element_bytes = 0;
  // In its storage, from its first element to its last.
  std::size_t begin = 0;
  std::size_t bytes = 0;
  bool is_dense = false;

  explicit HostLayout(const at::Tensor& host)
      : sizes(host.sizes()),
        strides(host.strides()),
        element_bytes(host.element_size()),
        begin(static_cast<std::size_t>(host.storage_offset()) * element_bytes),
        is_dense(host.is_non_overlapping_and_dense()) {
    std::int64_t last = 0;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      last += (sizes[i] - 1) * strides[i];
    }
    bytes = static_cast<std::size_t>(last + 1) * element_bytes;
  }
  std::int64_t spanned() const { return static_cast<std::int64_t>(bytes / element_bytes); }
};

// One copy, in the order of its stream.
struct Move {
  HostStorage storage;
  HostLayout host;
  DeviceTensor there = {};
  std::uint32_t version = 0;  // before the operator counts
  std::size_t hashed = 0;     // bytes of each part
  HostBytes memory = {};      // null: it may be gone
  bool is_exact = false;      // the bytes have the same order on both sides
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
    return {identity_.value(), all_finite_ ? FERRO_SIM_KNOWN : FERRO_SIM_UNKNOWN, 0, 0, 0, 0};
  }

 private:
  Identity identity_;
  bool all_finite_ = true;
};

constexpr std::uint8_t kNoElement = 0xff;

// How far each element is from known, from the host tensor's first one to its last. None: all of them
// have the certainty of the least, or there are too many parts.
std::optional<at::Tensor> doubts_there(const Move& move) {
  const std::int64_t most = kMostListed;
  const auto doubts = move.there.doubts(most, kMostParts);
  if (!doubts || move.host.spanned() > std::max(most, move.there.elements())) {
    return std::nullopt;
  }
  at::Tensor all = at::detail::empty_cpu({move.host.spanned()}, at::kByte);
  all.fill_(kNoElement);
  all.as_strided(move.host.sizes, move.host.strides).copy_(doubts->expand(move.host.sizes));
  return all;
}

// Calls `visit(begin, bytes, certainty)` for the bytes of the host tensor. `of_span`: of the bytes
// there.
template <typename Visit>
void for_each_part(const Move& move, const ferro_sim_certainties& of_span, const Visit& visit) {
  const ferro_sim_certainty least = move.there.certainty(of_span.least);
  std::optional<at::Tensor> doubts;
  if (least != of_span.most) {
    const BelowModes guard;
    doubts = doubts_there(move);
  }
  if (!doubts) {
    visit(move.host.begin, move.host.bytes, least);
    return;
  }
  const auto* const of = doubts->const_data_ptr<std::uint8_t>();
  const auto count = static_cast<std::size_t>(doubts->numel());
  std::size_t parts = 0;
  for (std::size_t i = 1; i < count; ++i) {
    parts += of[i] != of[i - 1] ? 1 : 0;
  }
  if (parts > kMostRuns) {
    visit(move.host.begin, move.host.bytes, least);
    return;
  }
  for (std::size_t begin = 0, end = 0; begin < count; begin = end) {
    while (end < count && of[end] == of[begin]) {
      ++end;
    }
    if (of[begin] != kNoElement) {
      visit(move.host.begin + begin * move.host.element_bytes,
            (end - begin) * move.host.element_bytes,
            static_cast<ferro_sim_certainty>(FERRO_SIM_KNOWN - of[begin]));
    }
  }
}

void remember(const Move& move) {
  const auto [listed, of_span] = move.there.origins();
  const std::vector<ferro_sim_origin_piece> origins(listed.begin(), listed.end());
  Remembered& host = storages()
                         .try_emplace(move.storage._unsafe_get_target(), Remembered{move.storage})
                         .first->second;
  if (!is_unchanged(host, move.version)) {
    host.facts.clear();
  }
  host.version = move.version;
  Mixed mixed;
  for (const ferro_sim_origin_piece& piece : origins) {
    mixed.add(piece.origin, piece.offset, piece.bytes);
  }
  const auto set = [&](std::size_t begin, std::size_t bytes, ferro_sim_certainty certainty,
                       const ferro_sim_origin& origin, std::size_t offset) {
    host.facts.set(begin, {begin + bytes, certainty, origin, offset}, move.hashed, move.memory);
  };
  auto piece = origins.begin();
  std::size_t before = 0;  // bytes of the host's tensor before the piece
  for_each_part(move, of_span,
                [&](std::size_t begin, std::size_t bytes, ferro_sim_certainty certainty) {
                  std::size_t done = begin - move.host.begin;
                  const std::size_t end = done + bytes;
                  // Parts follow each other, and so do the pieces.
                  while (move.is_exact && done < end && piece != origins.end()) {
                    if (before + piece->bytes <= done) {
                      before += piece++->bytes;
                      continue;
                    }
                    const std::size_t until = std::min(end, before + piece->bytes);
                    set(move.host.begin + done, until - done, certainty, piece->origin,
                        piece->offset + (done - before));
                    done = until;
                  }
                  // Only the first ones of very many origins are listed.
                  if (done < end) {
                    set(move.host.begin + done, end - done, certainty, mixed.origin(), done);
                  }
                });
  remove_freed();
  remembered.store(storages().size(), std::memory_order_relaxed);
}

Remembered* find(const Move& move) {
  const auto found = storages().find(move.storage._unsafe_get_target());
  return found == storages().end() ? nullptr : &found->second;
}

// Before a copy to a card.
void drop_changed(const Move& move) {
  if (Remembered* const host = find(move)) {
    host->facts.drop_changed(move.host.begin, move.host.bytes, move.memory);
  }
}

// Marks the elements there as those of the host are. False: they are too many, or too many parts.
bool mark_elements(const Move& move, const HostFacts& facts) {
  if (move.host.spanned() > std::max(kMostListed, move.there.elements())) {
    return false;
  }
  const BelowModes guard;
  at::Tensor all = at::detail::empty_cpu({move.host.spanned()}, at::kByte);
  all.fill_(0);
  auto* const doubts = all.mutable_data_ptr<std::uint8_t>();
  facts.for_each(
      move.host.begin, move.host.bytes,
      [&](std::size_t begin, std::size_t bytes, const HostFacts::Fact& fact, std::size_t) {
        const auto doubt = static_cast<std::uint8_t>(FERRO_SIM_KNOWN - fact.certainty);
        const std::size_t first = begin - move.host.begin;
        const std::size_t size = move.host.element_bytes;
        for (std::size_t i = first / size; i * size < first + bytes; ++i) {
          doubts[i] = std::max(doubts[i], doubt);
        }
      });
  const auto laid_out =
      move.there.lay_out_doubts(all.as_strided(move.host.sizes, move.host.strides), kMostParts);
  if (laid_out) {
    move.there.mark(*laid_out);
  }
  return laid_out.has_value();
}

void restore(const Move& move) {
  const Remembered* const host = find(move);
  if (host == nullptr || !is_unchanged(*host, move.version)) {
    return;
  }
  if (!move.is_exact) {
    Mixed mixed;
    ferro_sim_certainty least = FERRO_SIM_KNOWN;
    host->facts.for_each(
        move.host.begin, move.host.bytes,
        [&](std::size_t, std::size_t bytes, const HostFacts::Fact& fact, std::size_t offset) {
          mixed.add(fact.origin, offset, bytes);
          least = std::min(least, fact.certainty);
        });
    if (least == FERRO_SIM_KNOWN) {
      return;
    }
    if (mark_elements(move, host->facts)) {
      move.there.originate(mixed.origin());
    } else {
      move.there.forget(true, mixed.origin());
    }
    return;
  }
  host->facts.for_each(
      move.host.begin, move.host.bytes,
      [&](std::size_t begin, std::size_t bytes, const HostFacts::Fact& fact, std::size_t offset) {
        const std::uint64_t address = move.there.address() + (begin - move.host.begin);
        if (fact.certainty != FERRO_SIM_KNOWN) {
          gpu().write(address, nullptr, bytes, fact.certainty, 1);
        }
        gpu().originate(address, bytes, &fact.origin, offset);
      });
}

template <void (*act)(const Move&)>
void perform(void* move) {
  act(*static_cast<const Move*>(move));
}

// The same for one that the caller passed on. By then the host's memory may be gone.
template <void (*act)(const Move&)>
void perform_queued(void* held) {
  const std::unique_ptr<Move> move(static_cast<Move*>(held));
  move->memory = {};
  act(*move);
}

template <void (*act)(const Move&)>
void perform_in_order(Move& move, int device) {
  if (gpu().in_order_if_eager(device, current_stream, perform<act>, &move) != 2) {
    return;
  }
  auto queued = std::make_unique<Move>(move);
  if (gpu().in_order(device, current_stream(device), perform_queued<act>, queued.get()) == 0) {
    static_cast<void>(queued.release());
  }
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
  return HostCopy(to, from, arguments.size() > 2 && arguments[2].toBool());
}

void HostCopy::note() const {
  const bool up = to_.is_cuda();
  const at::Tensor& device = up ? to_ : from_;
  const at::Tensor& host = up ? from_ : to_;
  const c10::StorageImpl& storage = *host.storage().unsafeGetStorageImpl();
  Move move{host.storage().getWeakStorageImpl(), HostLayout(host)};
  if (!move.there.describe(device)) {
    return;
  }
  const bool counts_writes = !host.is_inference();
  move.version = counts_writes ? host._version() : 0;
  move.hashed = counts_writes && move.host.bytes > kMostHashed ? kBeginning : HostFacts::kPart;
  move.memory = {static_cast<const std::byte*>(storage.data()), storage.nbytes()};
  move.is_exact = same_order(to_, from_);
  const auto index = device.device().index();
  if (up) {
    gpu().at_once(perform<drop_changed>, &move);
    perform_in_order<restore>(move, index);
  } else if (non_blocking_) {
    perform_in_order<remember>(move, index);
  } else {
    // The stream's earlier work has ended.
    gpu().at_once(perform<remember>, &move);
  }
}

}  // namespace ferro::values
