// The control functions for who computes in the place of kernels.
#include "sim/control.h"
#include "sim/driver/submission.h"
#include "sim/machine/locate.h"
#include "sim/machine/machine.h"

#define FERRO_SIM_CONTROL extern "C" __attribute__((visibility("default")))

using ferro::sim::Machine;

namespace {

// The default stream is that of the device, whichever is current. Null for an unknown one.
ferro::sim::Stream* find_stream(Machine& machine, int device, void* handle) {
  if (device < 0 || device >= machine.device_count()) {
    return nullptr;
  }
  return handle == nullptr ? &machine.device(device).context.legacy
                           : machine.find_stream(static_cast<CUstream>(handle));
}

}  // namespace

FERRO_SIM_CONTROL int ferro_sim_is_captured(int device, void* handle) {
  const std::lock_guard guard(Machine::lock());
  const ferro::sim::Stream* stream = find_stream(Machine::current(), device, handle);
  return stream != nullptr && stream->capture != nullptr ? 1 : 0;
}

FERRO_SIM_CONTROL int ferro_sim_in_order(int device, void* handle, void (*function)(void*),
                                         void* argument) {
  const std::lock_guard guard(Machine::lock());
  Machine& machine = Machine::current();
  ferro::sim::Stream* stream = find_stream(machine, device, handle);
  if (stream == nullptr) {
    return -1;
  }
  if (stream->capture != nullptr) {
    return 1;
  }
  const double before = machine.config().processor_time();
  submit(machine.scheduler(), *stream, ferro::sim::InOrder{function, argument});
  // A GPU would not have cost the program this time.
  if (auto& ended = machine.thread().last_call_ended) {
    *ended += machine.config().processor_time() - before;
  }
  return 0;
}

FERRO_SIM_CONTROL void ferro_sim_at_once(void (*function)(void*), void* argument) {
  const std::lock_guard guard(Machine::lock());
  function(argument);
}

FERRO_SIM_CONTROL int ferro_sim_read(uint64_t address, void* destination, size_t bytes) {
  std::vector<ferro::sim::Segment> segments;
  if (!locate(Machine::current(), address, bytes, segments)) {
    return -1;
  }
  auto* to = static_cast<std::byte*>(destination);
  bool known = true;
  for (const auto& segment : segments) {
    segment.memory->read(segment.offset, to, segment.bytes);
    known = known && segment.memory->is_known(segment.offset, segment.bytes);
    to += segment.bytes;
  }
  return known ? 1 : 0;
}

FERRO_SIM_CONTROL int ferro_sim_write(uint64_t address, const void* source, size_t bytes, int known,
                                      int keep) {
  std::vector<ferro::sim::Segment> segments;
  if (!locate(Machine::current(), address, bytes, segments)) {
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
    if (known == 0) {
      segment.memory->forget(segment.offset, segment.bytes);
    }
  }
  return 0;
}

FERRO_SIM_CONTROL void ferro_sim_answer(uint64_t value) {
  const std::lock_guard guard(Machine::lock());
  Machine::current().thread().answer = value;
}

FERRO_SIM_CONTROL void ferro_sim_end_answer(void) {
  const std::lock_guard guard(Machine::lock());
  Machine::current().thread().answer.reset();
}

FERRO_SIM_CONTROL void ferro_sim_operator(int change) {
  const std::lock_guard guard(Machine::lock());
  Machine::current().thread().operators += change;
}

FERRO_SIM_CONTROL uint64_t ferro_sim_transfers(void) {
  const std::lock_guard guard(Machine::lock());
  return Machine::current().thread().transfers;
}

FERRO_SIM_CONTROL size_t ferro_sim_kernels(char* buffer, size_t size) {
  const std::lock_guard guard(Machine::lock());
  std::string text;
  for (const std::string& name : Machine::current().kernels()) {
    text += name + "\n";
  }
  return ferro::sim::copy_text(text, buffer, size);
}

FERRO_SIM_CONTROL uint64_t ferro_sim_unknown_reads(void) {
  const std::lock_guard guard(Machine::lock());
  return Machine::current().unknown_reads();
}
