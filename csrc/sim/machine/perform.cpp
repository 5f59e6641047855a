#include "sim/machine/perform.h"

#include "sim/machine/locate.h"
#include "sim/machine/machine.h"
#include "sim/machine/outside_kernel.h"
#include "sim/memory/origins.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>

namespace ferro::sim {
namespace {

// One side of a copied row: pieces of device memory, or host bytes.
class Side {
 public:
  // False for an illegal address.
  bool open(const Machine& machine, std::uintptr_t at, std::size_t bytes, Accessor by, bool write,
            bool on_device) {
    segments_.clear();
    host_ = nullptr;
    if (on_device || machine.space().is_reserved(at)) {
      return machine.space().is_reserved(at) &&
             machine.space().resolve(at, bytes, by, write, segments_);
    }
    host_ = reinterpret_cast<std::byte*>(at);
    return true;
  }
  std::byte* host() const { return host_; }
  const std::vector<Segment>& segments() const { return segments_; }

 private:
  std::byte* host_ = nullptr;
  std::vector<Segment> segments_;
};

void copy_device_to_device(const Side& to, const Side& from) {
  std::size_t t = 0;
  std::size_t f = 0;
  std::size_t t_done = 0;
  std::size_t f_done = 0;
  while (t < to.segments().size() && f < from.segments().size()) {
    const Segment& target = to.segments()[t];
    const Segment& source = from.segments()[f];
    const std::size_t piece = std::min(target.bytes - t_done, source.bytes - f_done);
    target.memory->copy(target.offset + t_done, *source.memory, source.offset + f_done, piece);
    t_done += piece;
    f_done += piece;
    if (t_done == target.bytes) {
      ++t;
      t_done = 0;
    }
    if (f_done == source.bytes) {
      ++f;
      f_done = 0;
    }
  }
}

void copy_row(const Side& to, const Side& from, std::size_t bytes) {
  if (to.host() != nullptr && from.host() != nullptr) {
    std::memmove(to.host(), from.host(), bytes);
    return;
  }
  if (to.host() == nullptr && from.host() == nullptr) {
    copy_device_to_device(to, from);
    return;
  }
  std::byte* host = to.host() != nullptr ? to.host() : from.host();
  for (const Segment& segment : to.host() != nullptr ? from.segments() : to.segments()) {
    if (to.host() != nullptr) {
      segment.memory->read(segment.offset, host, segment.bytes);
    } else {
      segment.memory->write(segment.offset, host, segment.bytes);
    }
    host += segment.bytes;
  }
}

ferro_sim_certainty least_certainty(const Side& side) {
  ferro_sim_certainty least = FERRO_SIM_KNOWN;
  for (const Segment& segment : side.segments()) {
    least =
        std::min(least, segment.memory->knowledge().least_certainty(segment.offset, segment.bytes));
  }
  return least;
}

bool do_copy(Machine& machine, const Copy& copy, int device) {
  Side to;
  Side from;
  const Accessor by{device, copy.peers};
  std::optional<ferro_sim_certainty> read;
  for (std::size_t row = 0; row < copy.height; ++row) {
    const std::uintptr_t source =
        copy.staged != nullptr
            ? reinterpret_cast<std::uintptr_t>(copy.staged->data()) + row * copy.width
            : copy.from + row * copy.from_pitch;
    if (!to.open(machine, copy.to + row * copy.to_pitch, copy.width, by, true, copy.to_device) ||
        !from.open(machine, source, copy.width, by, false, copy.from_device)) {
      return false;
    }
    if (to.host() != nullptr) {
      for (const Segment& segment : from.segments()) {
        segment.memory->compute(segment.offset, segment.bytes);
      }
      read = std::min(read.value_or(FERRO_SIM_KNOWN), least_certainty(from));
    }
    copy_row(to, from, copy.width);
  }
  if (read && copy.thread != nullptr) {
    std::atomic_ref(copy.thread->reads[*read]).fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

void fill_host(std::byte* to, const Fill& fill) {
  for (std::size_t i = 0; i < fill.width; ++i) {
    std::memcpy(to + i * fill.element, &fill.value, fill.element);
  }
}

bool do_fill(Machine& machine, const Fill& fill, int device) {
  Side to;
  const std::size_t bytes = fill.width * fill.element;
  // Everything but page-locked memory is device memory, which may have been released since.
  const bool on_device = !machine.host().find(reinterpret_cast<const void*>(fill.to)).has_value();
  for (std::size_t row = 0; row < fill.height; ++row) {
    if (!to.open(machine, fill.to + row * fill.pitch, bytes, {device}, true, on_device)) {
      return false;
    }
    if (to.host() != nullptr) {
      fill_host(to.host(), fill);
    }
    for (const Segment& segment : to.segments()) {
      segment.memory->fill(segment.offset, fill.value, fill.element, segment.bytes);
    }
  }
  return true;
}

// A copy must stay inside the allocation it begins in.
bool is_within_allocation(const Machine& machine, std::uintptr_t at, std::size_t bytes) {
  const Mapping* mapping = bytes == 0 ? nullptr : machine.space().find_mapping(at);
  if (mapping == nullptr || !mapping->plain || mapping->pages->imported()) {
    return true;
  }
  const auto range = machine.device(mapping->pages->device()).allocations.find(at);
  return range && at + bytes <= range->base + range->bytes;
}

std::size_t span(std::size_t width, std::size_t height, std::size_t pitch) {
  return width == 0 || height == 0 ? 0 : (height - 1) * pitch + width;
}

// Is the range host memory, or device memory that `by` may access?
bool is_accessible_range(const Machine& machine, std::uintptr_t at, std::size_t bytes, Accessor by,
                         bool write) {
  std::vector<Segment> segments;
  return !machine.space().is_reserved(at) ||
         machine.space().resolve(at, bytes, by, write, segments);
}

std::size_t target_span(const Copy& copy) { return span(copy.width, copy.height, copy.to_pitch); }

// Staged sources are host memory.
std::size_t source_span(const Copy& copy) {
  return copy.staged != nullptr ? 0 : span(copy.width, copy.height, copy.from_pitch);
}

void forget_segments(const std::vector<Segment>& segments, const ferro_sim_origin& origin,
                     std::size_t offset) {
  for (const Segment& segment : segments) {
    segment.memory->forget(segment.offset, segment.bytes, true, origin, offset);
    offset += segment.bytes;
  }
}

// Memory that was unmapped since has no contents to forget.
void forget(Machine& machine, const Forget& forget) {
  std::vector<Segment> segments;
  for (const UnknownBytes& range : *forget.ranges) {
    if (range.bytes == 0) {
      forget_everything(machine);
      continue;
    }
    segments.clear();
    if (!locate(machine, range.at, range.bytes, segments)) {
      continue;
    }
    ferro_sim_origin origin = range.origin;
    origin.identity = (origin.identity ^ forget.replay) * 0x9e3779b97f4a7c15 | 1;
    // Rows take a part of memory each, which is for nothing where the bytes between them are unknown too.
    const bool in_rows =
        range.width != 0 &&
        !std::all_of(segments.begin(), segments.end(), [](const Segment& segment) {
          return segment.memory->knowledge().is_unknown(segment.offset, segment.bytes);
        });
    if (!in_rows) {
      forget_segments(segments, origin, range.offset);
      continue;
    }
    std::size_t offset = range.offset;
    for (std::size_t row = 0; row < range.bytes; row += range.pitch, offset += range.width) {
      segments.clear();
      locate(machine, range.at + row, range.width, segments);
      forget_segments(segments, origin, offset);
    }
  }
}

}  // namespace

void perform(Machine& machine, const Work& work, int device) {
  bool legal = true;
  if (const Copy* copy = std::get_if<Copy>(&work)) {
    legal = do_copy(machine, *copy, device);
  } else if (const Fill* fill = std::get_if<Fill>(&work)) {
    legal = do_fill(machine, *fill, device);
  } else if (const InOrder* call = std::get_if<InOrder>(&work)) {
    call->function(call->argument);
  } else if (const Forget* forgotten = std::get_if<Forget>(&work)) {
    forget(machine, *forgotten);
  } else if (const ForgetReach* reach = std::get_if<ForgetReach>(&work)) {
    forget_reach(machine, *reach->of);
  } else if (const Kernel* kernel = std::get_if<Kernel>(&work)) {
    legal = !kernel->constant || do_fill(machine, *kernel->constant, device);
  } else if (const FreeMemory* free = std::get_if<FreeMemory>(&work)) {
    machine.device(device).allocations.free(free->at);
  }
  if (!legal) {
    machine.device(device).context.sticky_error = CUDA_ERROR_ILLEGAL_ADDRESS;
  }
}

bool is_accessible(const Machine& machine, const Work& work, int device) {
  if (const Copy* copy = std::get_if<Copy>(&work)) {
    const Accessor by{device, copy->peers};
    return is_accessible_range(machine, copy->to, target_span(*copy), by, true) &&
           is_accessible_range(machine, copy->from, source_span(*copy), by, false);
  }
  if (const Fill* fill = std::get_if<Fill>(&work)) {
    const bool known = machine.space().is_reserved(fill->to) ||
                       machine.host().find(reinterpret_cast<const void*>(fill->to)).has_value();
    const std::size_t bytes = span(fill->width * fill->element, fill->height, fill->pitch);
    return known && is_accessible_range(machine, fill->to, bytes, {device}, true);
  }
  return true;
}

CUresult validate(const Machine& machine, const Work& work, int device, bool recorded) {
  if (recorded && std::holds_alternative<Fill>(work)) {
    return CUDA_SUCCESS;
  }
  const Copy* copy = std::get_if<Copy>(&work);
  const bool within =
      copy == nullptr || (is_within_allocation(machine, copy->to, target_span(*copy)) &&
                          is_within_allocation(machine, copy->from, source_span(*copy)));
  return within && is_accessible(machine, work, device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace ferro::sim
