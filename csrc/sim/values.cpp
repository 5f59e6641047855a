// The control functions for code that computes values in place of kernels.
#include "sim/control.h"
#include "sim/driver/outside_launch.h"
#include "sim/driver/submission.h"
#include "sim/machine/locate.h"
#include "sim/machine/machine.h"
#include "sim/machine/perform.h"
#include "sim/memory/origins.h"

#include <algorithm>

#define FERRO_SIM_CONTROL extern "C" __attribute__((visibility("default")))

using ferro::sim::Machine;

namespace {

// Finds a stream; the default stream is that of `device`, even if another device is current. Null
// for an unknown stream.
ferro::sim::Stream* find_stream(Machine& machine, int device, void* handle) {
  if (device < 0 || device >= machine.device_count()) {
    return nullptr;
  }
  return handle == nullptr ? &machine.device(device).context.legacy
                           : machine.find_stream(static_cast<CUstream>(handle));
}

// Does the work really write what is at the address?
bool is_written_by(const ferro::sim::Work& work, uint64_t address) {
  if (const auto* fill = std::get_if<ferro::sim::Fill>(&work)) {
    return fill->to == address;
  }
  if (const auto* copy = std::get_if<ferro::sim::Copy>(&work)) {
    return copy->to == address;
  }
  const auto* kernel = std::get_if<ferro::sim::Kernel>(&work);
  return kernel != nullptr && kernel->constant && kernel->constant->to == address;
}

int in_order(int device, void* handle, void (*function)(void*), void* argument) {
  Machine& machine = Machine::current();
  ferro::sim::Stream* stream = find_stream(machine, device, handle);
  if (stream == nullptr) {
    return -1;
  }
  if (stream->capture != nullptr) {
    return 1;
  }
  if (machine.scheduler().eager()) {
    function(argument);
    return 0;
  }
  auto& ended = machine.thread().last_call_ended;
  const double before = ended ? machine.config().processor_time() : 0;
  submit(machine.scheduler(), *stream, ferro::sim::InOrder{function, argument});
  // On a GPU the program would not have spent this time.
  if (ended) {
    *ended += machine.config().processor_time() - before;
  }
  return 0;
}

// The pieces of physical memory behind a range. Only one object exists at a time, so all of them
// reuse one vector.
class Segments {
 public:
  Segments(uint64_t address, std::size_t bytes) {
    reused.clear();
    mapped_ = locate(Machine::current(), address, bytes, reused);
  }
  bool mapped() const { return mapped_; }
  // Null if there are several.
  const ferro::sim::Segment* only() const { return reused.size() == 1 ? reused.data() : nullptr; }
  auto begin() const { return reused.begin(); }
  auto end() const { return reused.end(); }

 private:
  // Never destroyed, as all lists here: threads may outlive the library's statics.
  static inline std::vector<ferro::sim::Segment>& reused = *new std::vector<ferro::sim::Segment>;
  bool mapped_ = false;
};

}  // namespace

FERRO_SIM_CONTROL int ferro_sim_in_order(int device, void* handle, void (*function)(void*),
                                         void* argument) {
  const std::lock_guard guard(Machine::lock());
  return in_order(device, handle, function, argument);
}

FERRO_SIM_CONTROL int ferro_sim_in_order_if_eager(int device, void* (*stream_of)(int device),
                                                  void (*function)(void*), void* argument) {
  const std::lock_guard guard(Machine::lock());
  Machine& machine = Machine::current();
  if (!machine.scheduler().eager()) {
    return 2;
  }
  if (!machine.captures().empty()) {
    return in_order(device, stream_of(device), function, argument);
  }
  function(argument);
  return 0;
}

FERRO_SIM_CONTROL void ferro_sim_at_once(void (*function)(void*), void* argument) {
  const std::lock_guard guard(Machine::lock());
  function(argument);
}

FERRO_SIM_CONTROL void ferro_sim_fail_assertion(int device) {
  CUresult& error = Machine::current().device(device).context.sticky_error;
  error = error == CUDA_SUCCESS ? CUDA_ERROR_ASSERT : error;
}

FERRO_SIM_CONTROL int ferro_sim_least_certainty(uint64_t address, size_t bytes) {
  const Segments segments(address, bytes);
  if (!segments.mapped()) {
    return -1;
  }
  ferro_sim_certainty least = FERRO_SIM_KNOWN;
  for (const auto& segment : segments) {
    least =
        std::min(least, segment.memory->knowledge().least_certainty(segment.offset, segment.bytes));
  }
  return least;
}

FERRO_SIM_CONTROL int64_t ferro_sim_take_pieces(uint64_t address, size_t bytes,
                                                ferro_sim_piece* pieces, size_t room, size_t most) {
  const Segments segments(address, bytes);
  if (!segments.mapped()) {
    return -1;
  }
  static auto& found = *new std::vector<ferro_sim_piece>;
  found.clear();
  for (const auto& segment : segments) {
    if (segment.memory->take_pieces(segment.offset, segment.bytes, found, most) < segment.bytes) {
      break;
    }
  }
  if (found.size() <= room) {
    std::copy(found.begin(), found.end(), pieces);
  } else {
    for (const ferro_sim_piece& piece : found) {
      ferro_sim_release(piece.contents);
    }
  }
  return static_cast<int64_t>(found.size());
}

FERRO_SIM_CONTROL void ferro_sim_release(ferro_sim_contents* contents) {
  if (contents != nullptr && --contents->references == 0) {
    contents->kind->destroy(contents);
  }
}

FERRO_SIM_CONTROL int ferro_sim_hold(uint64_t address, size_t bytes, ferro_sim_contents* contents,
                                     size_t offset, ferro_sim_certainty certainty) {
  const Segments segments(address, bytes);
  if (!segments.mapped()) {
    return -1;
  }
  const ferro::sim::ContentsRef held(contents);
  for (const auto& segment : segments) {
    segment.memory->hold(segment.offset, segment.bytes, held, offset);
    if (certainty != FERRO_SIM_KNOWN) {
      segment.memory->mark(segment.offset, segment.bytes, certainty);
    }
    offset += segment.bytes;
  }
  return 0;
}

FERRO_SIM_CONTROL int ferro_sim_exchange(uint64_t address, size_t bytes,
                                         ferro_sim_contents* contents, size_t offset) {
  const Segments segments(address, bytes);
  if (!segments.mapped()) {
    return -1;
  }
  if (std::any_of(segments.begin(), segments.end(),
                  [](const auto& segment) { return segment.memory->is_shared(); })) {
    return 1;
  }
  const ferro::sim::ContentsRef held(contents);
  for (const auto& segment : segments) {
    segment.memory->exchange(segment.offset, segment.bytes, held, offset);
    offset += segment.bytes;
  }
  return 0;
}

FERRO_SIM_CONTROL int ferro_sim_originate(uint64_t address, size_t bytes,
                                          const ferro_sim_origin* origin, size_t offset) {
  const Segments segments(address, bytes);
  if (!segments.mapped()) {
    return -1;
  }
  for (const auto& segment : segments) {
    segment.memory->originate(segment.offset, segment.bytes, *origin, offset);
    offset += segment.bytes;
  }
  return 0;
}

FERRO_SIM_CONTROL int64_t ferro_sim_origins(uint64_t address, size_t bytes,
                                            ferro_sim_origin_piece* pieces, size_t room,
                                            ferro_sim_certainties* certainties) {
  const Segments segments(address, bytes);
  if (!segments.mapped()) {
    return -1;
  }
  const auto add_only = [&](ferro_sim_certainty certainty, const ferro_sim_origin& origin,
                            std::size_t skipped) {
    *certainties = {certainty, certainty};
    *pieces = {origin, skipped, bytes};
  };
  if (const ferro::sim::Segment* const only = segments.only();
      only != nullptr && room > 0 &&
      only->memory->visit_only_origin(only->offset, bytes, add_only)) {
    return 1;
  }
  static auto& found = *new std::vector<ferro_sim_origin_piece>;
  found.clear();
  *certainties = {FERRO_SIM_KNOWN, FERRO_SIM_UNKNOWN};
  for (const auto& segment : segments) {
    const std::size_t left = room - std::min(room, found.size());
    const ferro_sim_certainties there =
        segment.memory->list_origins(segment.offset, segment.bytes, left, found);
    certainties->least = std::min(certainties->least, there.least);
    certainties->most = std::max(certainties->most, there.most);
  }
  found.resize(std::min(found.size(), room));
  std::copy(found.begin(), found.end(), pieces);
  return static_cast<int64_t>(found.size());
}

FERRO_SIM_CONTROL int ferro_sim_doubts(uint64_t address, size_t bytes, size_t element_bytes,
                                       uint8_t* doubts, size_t most) {
  const Segments segments(address, bytes);
  if (!segments.mapped()) {
    return -1;
  }
  std::fill_n(doubts, bytes / element_bytes, uint8_t{0});
  std::size_t parts = 0;
  ferro::sim::for_each_unsure(
      segments, [&](std::size_t begin, std::size_t part, ferro_sim_certainty certainty) {
        if (++parts > most) {
          return false;
        }
        const auto doubt = static_cast<uint8_t>(FERRO_SIM_KNOWN - certainty);
        for (std::size_t i = begin / element_bytes; i * element_bytes < begin + part; ++i) {
          doubts[i] = std::max(doubts[i], doubt);
        }
        return true;
      });
  return parts > most ? 1 : 0;
}

FERRO_SIM_CONTROL int ferro_sim_write(uint64_t address, const void* source, size_t bytes,
                                      ferro_sim_certainty certainty, int keep) {
  const Segments segments(address, bytes);
  if (!segments.mapped()) {
    return -1;
  }
  const auto* from = static_cast<const std::byte*>(source);
  for (const auto& segment : segments) {
    if (from != nullptr) {
      segment.memory->write(segment.offset, from, segment.bytes);
      from += segment.bytes;
    } else if (keep == 0) {
      segment.memory->discard(segment.offset, segment.bytes);
    }
    if (certainty != FERRO_SIM_KNOWN || (from == nullptr && keep != 0)) {
      segment.memory->mark(segment.offset, segment.bytes, certainty);
    }
  }
  return 0;
}

FERRO_SIM_CONTROL int ferro_sim_forget(uint64_t address, size_t bytes, int keep,
                                       const ferro_sim_origin* origin, size_t offset) {
  const Segments segments(address, bytes);
  if (!segments.mapped()) {
    return -1;
  }
  for (const auto& segment : segments) {
    segment.memory->forget(segment.offset, segment.bytes, keep != 0, *origin, offset);
    offset += segment.bytes;
  }
  return 0;
}

FERRO_SIM_CONTROL int ferro_sim_forget_in_replays(int device, void* handle, uint64_t address,
                                                  size_t bytes, const ferro_sim_origin* origin,
                                                  size_t offset, size_t width, size_t pitch) {
  Machine& machine = Machine::current();
  ferro::sim::Stream* stream = find_stream(machine, device, handle);
  if (stream == nullptr || !Segments(address, bytes).mapped()) {
    return -1;
  }
  using Ranges = std::vector<ferro::sim::UnknownBytes>;
  const Ranges ranges = {{address, bytes, *origin, offset, width, pitch}};
  perform(machine, ferro::sim::Forget{std::make_shared<const Ranges>(ranges), 0}, device);
  if (stream->capture != nullptr && !stream->capture_front.empty() &&
      !is_written_by(stream->capture_front.back()->work(), address)) {
    auto& unknown = stream->capture_front.back()->unknown;
    if (unknown == nullptr) {
      unknown = std::make_shared<Ranges>();
    }
    unknown->push_back(ranges.front());
  }
  return 0;
}

FERRO_SIM_CONTROL void ferro_sim_answer(uint64_t value) {
  const std::lock_guard guard(Machine::lock());
  Machine::current().thread().answers.push_back(value);
}

FERRO_SIM_CONTROL void ferro_sim_end_answer(void) {
  const std::lock_guard guard(Machine::lock());
  auto& answers = Machine::current().thread().answers;
  if (!answers.empty()) {
    answers.pop_back();
  }
}

FERRO_SIM_CONTROL void ferro_sim_on_read_back(int (*is_result)(uint64_t)) {
  const std::lock_guard guard(Machine::lock());
  ferro::sim::set_read_back_observer(is_result);
}

FERRO_SIM_CONTROL void ferro_sim_observe_outside(const ferro_sim_outside_observer* observer) {
  const std::lock_guard guard(Machine::lock());
  ferro::sim::set_outside_observer(observer);
}

FERRO_SIM_CONTROL ferro_sim_thread_counts* ferro_sim_counts(void) {
  return Machine::counts().get();
}

FERRO_SIM_CONTROL size_t ferro_sim_kernels(char* buffer, size_t size) {
  const std::lock_guard guard(Machine::lock());
  std::string text;
  for (const std::string& name : Machine::current().kernels()) {
    text += name + "\n";
  }
  return ferro::sim::copy_text(text, buffer, size);
}
