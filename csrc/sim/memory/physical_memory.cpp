#include "sim/memory/physical_memory.h"

#include "ferro/base/bytes.h"
#include "ferro/base/check.h"
#include "sim/memory/origins.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace ferro::sim {
namespace {

constexpr std::size_t kOffsetsPerByte = 8;
constexpr std::size_t kHostPage = 4 * kKiB;
constexpr std::size_t kChunk = 2 * kMiB;
constexpr std::size_t kWindow = kGiB;
constexpr std::size_t kSlotsPerWindow = kWindow / kChunk;
// Smaller ranges are cleared by writing zeros, which is cheaper than returning pages.
constexpr std::size_t kClearByPages = 64 * kKiB;
// Pieces that are discarded are zeroed up to this size. Of larger ones it is noted that they are zeros:
// zeroing them would displace what the processor's caches hold.
constexpr std::size_t kClearAtOnce = kKiB;
// Smaller pieces of host memory are copied each time they are taken.
constexpr std::size_t kHeldBytes = 4 * kKiB;
// Smaller writes go into host memory.
constexpr std::size_t kHeldWrite = 64 * kKiB;
// A chunk that begins with a write of this size gets one large host page. Its page fault takes as
// long as a hundred faults of small pages.
constexpr std::size_t kLargePageWrite = 512 * kKiB;
// The bits of an entry of /proc/self/pagemap for a page that is present or swapped out.
constexpr std::uint64_t kInUse = std::uint64_t{3} << 62;

// A window of zeros, at a multiple of the chunk size as large pages require. The kernel gives host
// memory to pages that are written to.
std::byte* map_window(bool large_pages) {
  void* const mapped = mmap(nullptr, kWindow + kChunk, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  FERRO_CHECK(mapped != MAP_FAILED, std::string(std::strerror(errno)));
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::size_t before = align_up(reinterpret_cast<std::uintptr_t>(begin), kChunk) -
                             reinterpret_cast<std::uintptr_t>(begin);
  if (before > 0) {
    munmap(begin, before);
  }
  std::byte* const window = begin + before;
  munmap(window + kWindow, kChunk - before);
  if (large_pages) {
    madvise(window, kWindow, MADV_HUGEPAGE);  // a kernel without them returns an error
  }
  return window;
}

// Which of the host pages from `begin` on are in use. All of them if the kernel does not tell.
std::vector<bool> pages_in_use(const std::byte* begin, std::size_t pages) {
  std::vector<std::uint64_t> entries(pages);
  const std::size_t bytes = pages * sizeof(entries[0]);
  const auto at = reinterpret_cast<std::uintptr_t>(begin) / kHostPage * sizeof(entries[0]);
  // Opened each time, because after a fork a descriptor still shows the memory of the parent.
  const int file = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  const bool told = file >= 0 && pread(file, entries.data(), bytes, static_cast<off_t>(at)) ==
                                     static_cast<ssize_t>(bytes);
  if (file >= 0) {
    close(file);
  }
  std::vector<bool> in_use(pages, true);
  for (std::size_t i = 0; told && i < pages; ++i) {
    in_use[i] = (entries[i] & kInUse) != 0;
  }
  return in_use;
}

std::byte* map_file(int file, std::size_t bytes) {
  void* const mapped =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
  FERRO_CHECK(mapped != MAP_FAILED, std::string(std::strerror(errno)));
  return static_cast<std::byte*>(mapped);
}

}  // namespace

PhysicalMemory::PhysicalMemory(std::size_t capacity, bool backed, SharedCapacity* sharing,
                               int device)
    : capacity_(capacity), sharing_(sharing), device_(device), backed_(backed) {
  free_.add(0, align_up(capacity * kOffsetsPerByte, kChunk));
}

std::unique_ptr<PhysicalMemory> PhysicalMemory::shared(int file, std::size_t bytes, bool backed) {
  std::unique_ptr<PhysicalMemory> memory(new PhysicalMemory(Shared{}, bytes));
  if (backed) {
    memory->shared_ = map_file(file, bytes);
  }
  return memory;
}

PhysicalMemory::~PhysicalMemory() {
  if (shared_ != nullptr) {
    munmap(shared_, capacity_);
  }
  for (const Window& window : windows_) {
    munmap(window.begin, kWindow);
  }
}

std::optional<std::size_t> PhysicalMemory::allocate(std::size_t bytes) {
  const bool fits = sharing_ != nullptr ? sharing_->take(device_, bytes, capacity_)
                                        : bytes <= capacity_ - std::min(allocated_, capacity_);
  if (!fits) {
    return std::nullopt;
  }
  const auto offset = free_.take(bytes);
  if (offset) {
    add(bytes);
  } else if (sharing_ != nullptr) {
    sharing_->give_back(device_, bytes);
  }
  return offset;
}

void PhysicalMemory::take_overhead(std::size_t bytes) {
  if (sharing_ != nullptr) {
    sharing_->add(device_, bytes);
  }
  add(bytes);
}

void PhysicalMemory::return_overhead(std::size_t bytes) {
  if (sharing_ != nullptr) {
    sharing_->give_back(device_, bytes);
  }
  allocated_ -= bytes;
}

void PhysicalMemory::free(std::size_t offset, std::size_t bytes) {
  return_overhead(bytes);
  clear(offset, bytes);
  free_.add(offset, bytes);
}

std::byte* PhysicalMemory::place(std::size_t slot) const {
  return windows_[slot / kSlotsPerWindow].begin + slot % kSlotsPerWindow * kChunk;
}

std::vector<std::size_t>& PhysicalMemory::free_slots(bool large_pages) {
  return large_pages ? free_large_slots_ : free_slots_;
}

std::size_t PhysicalMemory::take_slot(bool large_pages) {
  std::vector<std::size_t>& unused = free_slots(large_pages);
  if (unused.empty()) {
    const std::size_t first = windows_.size() * kSlotsPerWindow;
    windows_.push_back({map_window(large_pages), large_pages});
    for (std::size_t slot = first + kSlotsPerWindow; slot > first;) {
      unused.push_back(--slot);
    }
  }
  const std::size_t slot = unused.back();
  unused.pop_back();
  return slot;
}

const std::byte* PhysicalMemory::find(std::size_t offset) const {
  if (shared_ != nullptr) {
    return shared_ + offset;
  }
  const auto slot = slots_.find(offset / kChunk);
  return slot == slots_.end() ? nullptr : place(slot->second) + offset % kChunk;
}

std::byte* PhysicalMemory::open(std::size_t offset, std::size_t bytes) {
  if (shared_ != nullptr) {
    return shared_ + offset;
  }
  const auto [slot, fresh] = slots_.try_emplace(offset / kChunk);
  if (fresh) {
    slot->second = take_slot(bytes >= kLargePageWrite);
  }
  return place(slot->second) + offset % kChunk;
}

template <typename Visit>
void PhysicalMemory::for_each_piece(std::size_t offset, std::size_t bytes, const Visit& visit) {
  while (bytes > 0) {
    const std::size_t piece = std::min(bytes, kChunk - offset % kChunk);
    visit(offset, piece);
    offset += piece;
    bytes -= piece;
  }
}

void PhysicalMemory::read(std::size_t offset, void* destination, std::size_t bytes) const {
  auto* const to = static_cast<std::byte*>(destination) - offset;
  const auto copy = [&](std::size_t at, const std::byte* from, std::size_t piece) {
    if (from != nullptr) {
      std::memcpy(to + at, from, piece);
    } else {
      std::memset(to + at, 0, piece);
    }
  };
  contents_.for_each_part(
      offset, bytes,
      [&](std::size_t at, std::size_t part, const ContentsRef& contents, std::size_t skipped) {
        const std::byte* const from = contents.bytes();
        copy(at, from == nullptr ? nullptr : from + skipped, part);
      },
      [&](std::size_t at, std::size_t part) {
        for_each_piece(at, part, [&](std::size_t within, std::size_t piece) {
          copy(within, find(within), piece);
        });
      });
}

void PhysicalMemory::write(std::size_t offset, const void* source, std::size_t bytes) {
  knowledge_.remove(offset, bytes);
  contents_.remove(offset, bytes);
  if (!holds_bytes()) {
    return;
  }
  const auto* from = static_cast<const std::byte*>(source);
  for_each_piece(offset, bytes, [&](std::size_t at, std::size_t piece) {
    if (writes_become_contents_ && piece >= kHeldWrite) {
      contents_.set(at, piece, copy_bytes(from, piece), 0);
      clear_piece(at, piece);
    } else {
      std::memmove(open(at, piece), from, piece);
    }
    from += piece;
  });
}

void PhysicalMemory::hold(std::size_t offset, std::size_t bytes, const ContentsRef& contents,
                          std::size_t at) {
  if (contents.is_zeros()) {
    discard(offset, bytes);
    return;
  }
  if (backed_) {
    knowledge_.remove(offset, bytes);
    set_contents(offset, bytes, contents, at);
    return;
  }
  if (const std::byte* const there = shared_ == nullptr ? nullptr : contents.bytes()) {
    write(offset, there + at, bytes);
  } else {
    clear(offset, bytes);
    mark(offset, bytes, FERRO_SIM_UNKNOWN);
  }
}

void PhysicalMemory::exchange(std::size_t offset, std::size_t bytes, const ContentsRef& contents,
                              std::size_t at) {
  FERRO_CHECK(!is_shared(), "shared memory holds no contents");
  if (backed_) {
    knowledge_.remove_origin(offset, bytes);
    set_contents(offset, bytes, contents, at);
  }
}

void PhysicalMemory::set_contents(std::size_t offset, std::size_t bytes,
                                  const ContentsRef& contents, std::size_t at) {
  contents_.set(offset, bytes, contents, at);
  for_each_piece(offset, bytes, [this](std::size_t where, std::size_t piece) {
    if (piece == kChunk) {
      clear_piece(where, piece);
    }
  });
}

void PhysicalMemory::compute(std::size_t offset, std::size_t bytes) {
  struct Part {
    std::size_t at;
    std::size_t bytes;
    ContentsRef contents;
    std::size_t skipped;
  };
  std::vector<Part> small;
  std::vector<std::pair<std::size_t, std::size_t>> failed;
  contents_.for_each_held(
      offset, bytes,
      [&](std::size_t at, std::size_t part, const ContentsRef& contents, std::size_t) {
        if (!contents.is_zeros() && contents.bytes() == nullptr) {
          failed.emplace_back(at, part);
          return true;
        }
        contents_.visit_range_at(at, [&](std::size_t begin, std::size_t all,
                                         const ContentsRef& held, std::size_t skipped) {
          if (is_small_part(held, all)) {
            small.push_back({begin, all, held, skipped});
          }
        });
        return true;
      });
  for (const Part& part : small) {
    detach(part.at, part.bytes, part.contents, part.skipped);
  }
  for (const auto& [at, part] : failed) {
    clear(at, part);
    mark(at, part, FERRO_SIM_UNKNOWN);
  }
}

void PhysicalMemory::detach(std::size_t offset, std::size_t bytes, const ContentsRef& contents,
                            std::size_t at) {
  const std::byte* from = contents.bytes() + at;
  contents_.remove(offset, bytes);
  for_each_piece(offset, bytes, [&](std::size_t within, std::size_t piece) {
    std::memcpy(open(within, piece), from, piece);
    from += piece;
  });
  if (contents.get()->origin.identity != 0) {
    originate(offset, bytes, contents.get()->origin, at);
  }
}

std::size_t PhysicalMemory::take_pieces(std::size_t offset, std::size_t bytes,
                                        std::vector<ferro_sim_piece>& pieces, std::size_t most) {
  std::size_t end = offset;
  const auto add = [&](ContentsRef contents, std::size_t at, std::size_t part) {
    if (!pieces.empty()) {
      ferro_sim_piece& last = pieces.back();
      const std::size_t end = contents.get() == nullptr ? at : last.offset + last.bytes;
      if (last.contents == contents.get() && end == at) {
        last.bytes += part;
        return;
      }
    }
    pieces.push_back({contents.release(), at, part});
  };
  struct Held {
    std::size_t at;
    std::size_t bytes;
    ContentsRef contents;
  };
  std::vector<Held> fresh;
  contents_.for_each_part(
      offset, bytes,
      [&](std::size_t at, std::size_t part, const ContentsRef& contents, std::size_t skipped) {
        end = at + part;
        add(contents, skipped, part);
      },
      [&](std::size_t at, std::size_t part) {
        end = at + part;
        for_each_piece(at, part, [&](std::size_t within, std::size_t piece) {
          const std::byte* const from = find(within);
          if (from == nullptr) {
            add({}, 0, piece);
            return;
          }
          ContentsRef copied = copy_bytes(from, piece);
          if (backed_ && piece >= kHeldBytes) {
            fresh.push_back({within, piece, copied});
          }
          add(std::move(copied), 0, piece);
        });
      },
      most);
  for (Held& held : fresh) {
    writes_become_contents_ = writes_become_contents_ || held.bytes >= kHeldWrite;
    contents_.set(held.at, held.bytes, std::move(held.contents), 0);
    if (held.bytes >= kClearByPages) {
      clear_piece(held.at, held.bytes);
    }
  }
  return end - offset;
}

ferro_sim_certainties PhysicalMemory::list_origins(std::size_t offset, std::size_t bytes,
                                                   std::size_t most,
                                                   std::vector<ferro_sim_origin_piece>& pieces) {
  const std::size_t before = pieces.size();
  ferro_sim_certainties found = {FERRO_SIM_KNOWN, FERRO_SIM_UNKNOWN};
  bool any_plain = false;
  std::size_t done = offset;
  knowledge_.for_each_fact(
      offset, bytes,
      [&](std::size_t at, std::size_t part, ferro_sim_certainty certainty,
          const ferro_sim_origin* origin, std::size_t skipped) {
        found.least = std::min(found.least, certainty);
        found.most = std::max(found.most, at > done ? FERRO_SIM_KNOWN : certainty);
        if (pieces.size() - before == most) {
          return found.least != FERRO_SIM_UNKNOWN;
        }
        any_plain = any_plain || origin == nullptr || at > done;
        pieces.push_back({origin == nullptr ? ferro_sim_origin{} : *origin, skipped, part});
        done = at + part;
        return true;
      });
  if (done < offset + bytes && pieces.size() - before < most) {
    found.most = FERRO_SIM_KNOWN;
  } else if (!any_plain) {
    return found;
  }
  pieces.resize(before);
  struct Part {
    std::size_t at;
    std::size_t bytes;
    std::optional<ferro_sim_origin> origin;
    std::size_t skipped;
  };
  // Copied first, because plain bytes get origins meanwhile. Never destroyed: threads may outlive it.
  static auto& parts = *new std::vector<Part>;
  parts.clear();
  done = offset;
  const auto add_plain = [&](std::size_t end) {
    if (end > done) {
      parts.push_back({done, end - done, std::nullopt, 0});
    }
  };
  std::size_t end = offset + bytes;
  std::size_t left = most;
  knowledge_.for_each_fact(offset, bytes,
                           [&](std::size_t at, std::size_t part, ferro_sim_certainty,
                               const ferro_sim_origin* origin, std::size_t skipped) {
                             if (origin == nullptr) {
                               return true;
                             }
                             if (left-- == 0) {
                               end = at;
                               return false;
                             }
                             add_plain(at);
                             parts.push_back({at, part, *origin, skipped});
                             done = at + part;
                             return true;
                           });
  add_plain(end);
  for (const Part& part : parts) {
    if (part.origin) {
      pieces.push_back({*part.origin, part.skipped, part.bytes});
    } else {
      list_plain_origins(part.at, part.bytes, most, pieces);
    }
  }
  return found;
}

void PhysicalMemory::list_plain_origins(std::size_t offset, std::size_t bytes, std::size_t most,
                                        std::vector<ferro_sim_origin_piece>& pieces) {
  std::size_t plain = offset;  // the beginning of bytes without an origin
  const auto end_plain = [&](std::size_t end) {
    if (end == plain) {
      return;
    }
    const std::uint64_t identity = hash_of_bytes(
        end - plain,
        [&](std::size_t at, std::byte* to, std::size_t n) { read(plain + at, to, n); });
    pieces.push_back({{identity, FERRO_SIM_KNOWN, 0, 0, 0, 0}, 0, end - plain});
    // Other processes may change shared bytes.
    if (shared_ == nullptr) {
      originate(plain, end - plain, pieces.back().origin, 0);
    }
  };
  std::size_t end = offset;
  contents_.for_each_part(
      offset, bytes,
      [&](std::size_t at, std::size_t part, const ContentsRef& contents, std::size_t skipped) {
        end = at + part;
        if (contents.get() != nullptr && contents.get()->origin.identity != 0) {
          end_plain(at);
          pieces.push_back({contents.get()->origin, skipped, part});
          plain = end;
        }
      },
      [&](std::size_t at, std::size_t part) { end = at + part; }, most);
  end_plain(end);
}

void PhysicalMemory::fill(std::size_t offset, std::uint64_t value, std::size_t width,
                          std::size_t bytes) {
  knowledge_.remove(offset, bytes);
  contents_.remove(offset, bytes);
  if (!holds_bytes()) {
    return;
  }
  std::byte element[sizeof(value)];
  std::memcpy(element, &value, sizeof(element));
  if (std::all_of(element, element + width, [](std::byte b) { return b == std::byte{0}; })) {
    clear(offset, bytes);
    return;
  }
  for_each_piece(offset, bytes, [&](std::size_t at, std::size_t piece) {
    std::byte* const to = open(at, piece);
    std::size_t done = std::min(width, piece);
    for (std::size_t i = 0; i < done; ++i) {
      to[i] = element[(at - offset + i) % width];
    }
    // Doubles the written bytes, which are whole elements each time.
    while (done < piece) {
      const std::size_t more = std::min(done, piece - done);
      std::memcpy(to + done, to, more);
      done += more;
    }
  });
}

template <typename Visit>
void PhysicalMemory::for_each_written(std::size_t offset, std::size_t bytes,
                                      const Visit& visit) const {
  if (shared_ != nullptr) {
    visit(offset, bytes);
    return;
  }
  const auto slot = slots_.find(offset / kChunk);
  if (slot == slots_.end()) {
    return;
  }
  const std::size_t chunk = align_down(offset, kChunk);
  const std::size_t first = align_down(offset, kHostPage);
  const std::size_t end = offset + bytes;
  const std::vector<bool> in_use = pages_in_use(place(slot->second) + (first - chunk),
                                                (align_up(end, kHostPage) - first) / kHostPage);
  for (std::size_t i = 0; i < in_use.size();) {
    const std::size_t run = i;
    for (; i < in_use.size() && in_use[i] == in_use[run]; ++i) {
    }
    if (in_use[run]) {
      const std::size_t begin = std::max(offset, first + run * kHostPage);
      visit(begin, std::min(end, first + i * kHostPage) - begin);
    }
  }
}

void PhysicalMemory::copy(std::size_t to, const PhysicalMemory& source, std::size_t from,
                          std::size_t bytes) {
  struct Part {
    std::size_t at;
    std::size_t bytes;
    ContentsRef contents;
    std::size_t skipped;
    bool held;
  };
  std::vector<Part> parts;
  source.contents_.for_each_part(
      from, bytes,
      [&](std::size_t at, std::size_t part, const ContentsRef& contents, std::size_t skipped) {
        parts.push_back({at, part, contents, skipped, true});
      },
      [&](std::size_t at, std::size_t part) {
        parts.push_back({at, part, {}, 0, false});
      });
  for (const Part& part : parts) {
    if (part.held) {
      if (!backed_ || !is_small_part(part.contents, part.bytes)) {
        hold(to + (part.at - from), part.bytes, part.contents, part.skipped);
      }
      continue;
    }
    for_each_piece(part.at, part.bytes, [&](std::size_t at, std::size_t piece) {
      std::size_t copied = 0;
      const auto copy_run = [&](std::size_t run, std::size_t size) {
        // Most of a large piece may be pages that nothing wrote to, such as between columns.
        if (copied == 0 && size < piece) {
          clear(to + (at - from), piece);
        }
        write(to + (run - from), source.find(run), size);
        copied += size;
      };
      if (piece >= kClearByPages) {
        source.for_each_written(at, piece, copy_run);
      } else if (source.find(at) != nullptr) {
        copy_run(at, piece);
      }
      if (copied == 0) {
        clear(to + (at - from), piece);
      }
    });
  }
  knowledge_.copy(to, source.knowledge_, from, bytes);
  for (const Part& part : parts) {
    if (backed_ && part.held && is_small_part(part.contents, part.bytes)) {
      detach(to + (part.at - from), part.bytes, part.contents, part.skipped);
    }
  }
}

void PhysicalMemory::copy_onto_zeros(std::size_t to, const PhysicalMemory& source, std::size_t from,
                                     std::size_t bytes) {
  source.contents_.for_each_part(
      from, bytes,
      [&](std::size_t at, std::size_t part, const ContentsRef& contents, std::size_t skipped) {
        hold(to + (at - from), part, contents, skipped);
      },
      [&](std::size_t at, std::size_t part) {
        for_each_piece(at, part, [&](std::size_t within, std::size_t piece) {
          source.for_each_written(within, piece, [&](std::size_t written, std::size_t size) {
            write(to + (written - from), source.find(written), size);
          });
        });
      });
  knowledge_.copy(to, source.knowledge_, from, bytes);
}

void PhysicalMemory::clear(std::size_t offset, std::size_t bytes) {
  knowledge_.remove(offset, bytes);
  contents_.remove(offset, bytes);
  clear_memory(offset, bytes);
}

void PhysicalMemory::discard(std::size_t offset, std::size_t bytes) {
  knowledge_.remove(offset, bytes);
  discard_contents(offset, bytes);
}

void PhysicalMemory::forget(std::size_t offset, std::size_t bytes, bool keep,
                            const ferro_sim_origin& origin, std::size_t at) {
  knowledge_.set(offset, bytes, FERRO_SIM_UNKNOWN, origin, at);
  if (!keep) {
    discard_contents(offset, bytes);
  }
}

void PhysicalMemory::discard_contents(std::size_t offset, std::size_t bytes) {
  if (contents_.holds_any(offset, bytes)) {
    if (contents_.holds(offset, bytes, {})) {
      return;
    }
    contents_.remove(offset, bytes);
  }
  for_each_piece(offset, bytes, [this](std::size_t at, std::size_t piece) {
    if (!backed_ || piece < kClearAtOnce || piece == kChunk) {
      clear_piece(at, piece);
    } else if (slots_.contains(at / kChunk)) {
      contents_.set(at, piece, ContentsRef(), 0);
    }
  });
}

void PhysicalMemory::clear_memory(std::size_t offset, std::size_t bytes) {
  for_each_piece(offset, bytes,
                 [this](std::size_t at, std::size_t piece) { clear_piece(at, piece); });
}

void PhysicalMemory::clear_piece(std::size_t offset, std::size_t bytes) {
  if (shared_ != nullptr) {
    std::memset(shared_ + offset, 0, bytes);
    return;
  }
  const auto found = slots_.find(offset / kChunk);
  if (found == slots_.end()) {
    return;
  }
  const std::size_t slot = found->second;
  std::byte* const to = place(slot) + offset % kChunk;
  if (bytes < kClearByPages) {
    std::memset(to, 0, bytes);
    return;
  }
  const std::size_t begin = align_up(offset % kChunk, kHostPage);
  const std::size_t end = align_down(offset % kChunk + bytes, kHostPage);
  std::memset(to, 0, begin - offset % kChunk);
  std::memset(place(slot) + end, 0, offset % kChunk + bytes - end);
  const int result = madvise(place(slot) + begin, end - begin, MADV_DONTNEED);
  FERRO_CHECK(result == 0, "simulated memory cannot be cleared");
  if (bytes == kChunk) {
    slots_.erase(found);
    free_slots(windows_[slot / kSlotsPerWindow].large_pages).push_back(slot);
  }
}

void PhysicalMemory::for_each_plain(
    std::size_t offset, std::size_t bytes,
    const std::function<void(const std::byte*, std::size_t)>& visit) const {
  const auto visit_aligned = [&](std::size_t at, const std::byte* there, std::size_t count) {
    const std::size_t skipped = (8 - at % 8) % 8;
    if (there != nullptr && count > skipped) {
      visit(there + skipped, count - skipped);
    }
  };
  contents_.for_each_part(
      offset, bytes,
      [&](std::size_t at, std::size_t part, const ContentsRef& contents, std::size_t skipped) {
        const std::byte* const copied = copied_bytes(contents);
        visit_aligned(at, copied == nullptr ? nullptr : copied + skipped, part);
      },
      [&](std::size_t at, std::size_t part) {
        for_each_piece(at, part, [&](std::size_t within, std::size_t piece) {
          visit_aligned(within, find(within), piece);
        });
      });
}

std::size_t PhysicalMemory::host_bytes() const {
  std::size_t pages = 0;
  for (const auto& [chunk, slot] : slots_) {
    const std::vector<bool> in_use = pages_in_use(place(slot), kChunk / kHostPage);
    pages += static_cast<std::size_t>(std::count(in_use.begin(), in_use.end(), true));
  }
  return pages * kHostPage;
}

}  // namespace ferro::sim
