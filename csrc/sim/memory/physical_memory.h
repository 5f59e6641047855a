// The physical memory of one device, or the bytes that several processes share in a file.
//
// Offsets are contiguous, and exceed the capacity, so that fragmentation never fails an allocation
// that the capacity allows. Only chunks of 2 MiB to which nonzero bytes were written take host
// memory. They lie anywhere in windows of a GiB, which are mapped one by one, because host and
// devices share the addresses of the process. Chunks that begin with a large write lie in windows
// with large host pages. Not thread-safe; the machine's lock guards it. Bytes keep the certainty of
// their last `mark` until the next write; copies carry it. Parts may hold contents by reference,
// which are computed when they are read; the host memory behind these parts is meaningless.
// Invariants: allocated() = sum of the sizes of all allocated ranges + overhead <= capacity(), over
// all processes that share the device; the bytes of a chunk without a slot are zero.
#pragma once

#include "sim/memory/contents_ref.h"
#include "sim/memory/free_ranges.h"
#include "sim/memory/held_ranges.h"
#include "sim/memory/knowledge.h"
#include "sim/memory/shared_capacity.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace ferro::sim {

class PhysicalMemory {
 public:
  // Unbacked memory has offsets but no bytes: writes are dropped, reads return zeros. With
  // `sharing`, which must outlive it, other processes share the capacity of this device.
  PhysicalMemory(std::size_t capacity, bool backed, SharedCapacity* sharing = nullptr,
                 int device = 0);
  // The first `bytes` of a file that other processes may write to, all of them allocated. The
  // caller keeps the file.
  static std::unique_ptr<PhysicalMemory> shared(int file, std::size_t bytes, bool backed);
  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  std::size_t capacity() const { return capacity_; }
  // Allocated bytes over all processes that share the device, and their maximum.
  std::size_t allocated() const { return sharing_ ? sharing_->allocated(device_) : allocated_; }
  std::size_t peak() const { return sharing_ ? sharing_->peak(device_) : peak_; }
  // Allocated bytes of this process.
  std::size_t own_allocated() const { return allocated_; }
  // Takes or returns `bytes` of the capacity, without an offset.
  void take_overhead(std::size_t bytes);
  void return_overhead(std::size_t bytes);

  // None if the capacity does not suffice. The bytes are zero.
  std::optional<std::size_t> allocate(std::size_t bytes);
  // Returns the range and forgets its contents.
  void free(std::size_t offset, std::size_t bytes);
  // Zeros a range that stays allocated. Parts of chunks keep their host memory, because returning
  // it takes longer than most operators.
  void discard(std::size_t offset, std::size_t bytes);

  void read(std::size_t offset, void* destination, std::size_t bytes) const;
  void write(std::size_t offset, const void* source, std::size_t bytes);
  // Repeats the low `width` (1, 2, 4 or 8) bytes of `value`; `bytes` is a multiple of `width`.
  void fill(std::size_t offset, std::uint64_t value, std::size_t width, std::size_t bytes);
  void copy(std::size_t to, const PhysicalMemory& source, std::size_t from, std::size_t bytes);
  // Copies onto bytes that are zero. Reads and copies only written host pages of the source,
  // because creating a page takes longer than copying it.
  void copy_onto_zeros(std::size_t to, const PhysicalMemory& source, std::size_t from,
                       std::size_t bytes);

  // Marks the bytes of a range, without changing them.
  void mark(std::size_t offset, std::size_t bytes, ferro_sim_certainty certainty) {
    knowledge_.set_certainty(offset, bytes, certainty);
  }
  const Knowledge& knowledge() const { return knowledge_; }

  // Makes the range hold these bytes of the contents, from `at` on, and known. Shared memory
  // computes the bytes now; unbacked memory drops them.
  void hold(std::size_t offset, std::size_t bytes, const ContentsRef& contents, std::size_t at);
  // The same in memory of this process only, and each byte keeps its certainty.
  void exchange(std::size_t offset, std::size_t bytes, const ContentsRef& contents, std::size_t at);
  bool is_shared() const { return shared_ != nullptr; }
  // Computes the contents of the range. Contents that cannot be computed become unknown zeros. If
  // memory has only a small part of large contents there, it becomes plain bytes, as in copies, so
  // that it does not hold the rest.
  void compute(std::size_t offset, std::size_t bytes);
  // Appends the pieces behind the range, each with a reference for the caller. Bytes in host memory
  // become contents. After that, large writes become contents at once, because they are likely to
  // be taken again. Ends before the part that holds contents after `most` of these. Returns the
  // number of bytes up to there.
  std::size_t take_pieces(std::size_t offset, std::size_t bytes,
                          std::vector<ferro_sim_piece>& pieces,
                          std::size_t most = std::numeric_limits<std::size_t>::max());
  // Says where the bytes of a range come from, `at` bytes into that origin, until the next write.
  void originate(std::size_t offset, std::size_t bytes, const ferro_sim_origin& origin,
                 std::size_t at) {
    knowledge_.set_origin(offset, bytes, origin, at);
  }
  // Makes the range unknown, with an origin, and zeros it unless `keep`.
  void forget(std::size_t offset, std::size_t bytes, bool keep, const ferro_sim_origin& origin,
              std::size_t at);
  // Appends the origins of the range, or of its beginning if there are more than about `most`. Plain
  // bytes without one get one that is derived from some of them. Returns the certainties of the
  // whole range; the most certain byte may be missed behind the origins that are listed.
  ferro_sim_certainties list_origins(std::size_t offset, std::size_t bytes, std::size_t most,
                                     std::vector<ferro_sim_origin_piece>& pieces);
  // Calls `visit(certainty, origin, offset)` if the range has one certainty and one origin, and that is
  // found at once. False: `list_origins` finds them.
  template <typename Visit>
  bool visit_only_origin(std::size_t offset, std::size_t bytes, const Visit& visit) const {
    if (knowledge_.visit_whole(offset, bytes, visit)) {
      return true;
    }
    bool is_only = false;
    if (knowledge_.is_plain(offset, bytes)) {
      contents_.visit_range_at(offset, [&](std::uint64_t at, std::size_t part,
                                           const ContentsRef& contents, std::size_t skipped) {
        const auto within = static_cast<std::size_t>(offset - at);
        is_only =
            !contents.is_zeros() && contents.get()->origin.identity != 0 && within + bytes <= part;
        if (is_only) {
          visit(FERRO_SIM_KNOWN, contents.get()->origin, skipped + within);
        }
      });
    }
    return is_only;
  }
  // Calls `visit(bytes, count)` for each part of the range that is in host memory, and so needs no
  // computing, from its first offset that is a multiple of 8 on.
  void for_each_plain(std::size_t offset, std::size_t bytes,
                      const std::function<void(const std::byte*, std::size_t)>& visit) const;
  // Parts that hold contents.
  std::size_t held_parts() const { return contents_.count(); }

  // Bytes of host memory behind the chunks.
  std::size_t host_bytes() const;

 private:
  static constexpr std::size_t kSmallShare = 8;
  struct Shared {};
  PhysicalMemory(Shared, std::size_t bytes) : capacity_(bytes), allocated_(bytes), backed_(false) {}

  void add(std::size_t bytes) {
    allocated_ += bytes;
    peak_ = std::max(peak_, allocated_);
  }
  // Calls `visit(offset, bytes)` for each piece of the range within one chunk.
  template <typename Visit>
  static void for_each_piece(std::size_t offset, std::size_t bytes, const Visit& visit);
  bool holds_bytes() const { return backed_ || shared_ != nullptr; }
  // The bytes of a piece; null when its chunk was never written to.
  const std::byte* find(std::size_t offset) const;
  // The same for bytes without an explicit origin.
  void list_plain_origins(std::size_t offset, std::size_t bytes, std::size_t most,
                          std::vector<ferro_sim_origin_piece>& pieces);
  // Calls `visit(offset, bytes)` for each part of the piece that may hold something other than
  // zeros.
  template <typename Visit>
  void for_each_written(std::size_t offset, std::size_t bytes, const Visit& visit) const;
  // The bytes of a piece that is written to. Gives its chunk a slot.
  std::byte* open(std::size_t offset, std::size_t bytes);
  std::byte* place(std::size_t slot) const;
  std::vector<std::size_t>& free_slots(bool large_pages);
  std::size_t take_slot(bool large_pages);
  // Is it so small a part of computed contents that its own bytes take much less host memory?
  static bool is_small_part(const ContentsRef& contents, std::size_t bytes) {
    return bytes <= contents.computed() / kSmallShare;
  }
  // Makes the range plain bytes, those of the contents. Each keeps its certainty, and the origin is
  // that of the contents.
  void detach(std::size_t offset, std::size_t bytes, const ContentsRef& contents, std::size_t at);
  // The contents alone.
  void set_contents(std::size_t offset, std::size_t bytes, const ContentsRef& contents,
                    std::size_t at);
  // Zeros the range, and returns whole host pages.
  void clear(std::size_t offset, std::size_t bytes);
  // Zeros only the bytes in host memory; the caller updates the contents and what is known.
  void clear_memory(std::size_t offset, std::size_t bytes);
  void clear_piece(std::size_t offset, std::size_t bytes);
  // Zeros the range; the caller updates what is known.
  void discard_contents(std::size_t offset, std::size_t bytes);

  const std::size_t capacity_;
  SharedCapacity* const sharing_ = nullptr;
  const int device_ = 0;  // in `sharing_`
  std::size_t allocated_ = 0;
  std::size_t peak_ = 0;
  const bool backed_;  // by host memory of its own
  // The whole file of another owner, mapped; else null.
  std::byte* shared_ = nullptr;
  struct Window {
    std::byte* begin;
    bool large_pages;
  };
  std::vector<Window> windows_;
  // The places of chunks in the windows, in chunks.
  std::unordered_map<std::size_t, std::size_t> slots_;
  std::vector<std::size_t> free_slots_;
  std::vector<std::size_t> free_large_slots_;  // of windows with large pages
  FreeRanges free_;                            // of the offsets
  HeldRanges<ContentsRef> contents_;
  Knowledge knowledge_;  // origins: of bytes that are not those of contents with an identity
  bool writes_become_contents_ = false;
};

}  // namespace ferro::sim
