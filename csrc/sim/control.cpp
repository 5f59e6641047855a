#include "sim/control.h"

#include "sim/machine/locate.h"
#include "sim/machine/machine.h"

#include <algorithm>
#include <cstring>
#include <string>

#define FERRO_SIM_CONTROL extern "C" __attribute__((visibility("default")))

using ferro::sim::copy_text;
using ferro::sim::Fault;
using ferro::sim::locate;
using ferro::sim::Machine;

namespace {

thread_local std::string last_error;

int fail(std::string sentence) {
  last_error = std::move(sentence);
  return -1;
}

int succeed() {
  last_error.clear();
  return 0;
}

}  // namespace

FERRO_SIM_CONTROL int ferro_sim_start(const char* settings) {
  ferro::sim::MachineConfig config = ferro::sim::config_from_environment();
  std::string mistake = ferro::sim::parse_config(settings == nullptr ? "" : settings, config);
  if (!mistake.empty()) {
    return fail(std::move(mistake));
  }
  Machine::start(config);
  return succeed();
}

FERRO_SIM_CONTROL void ferro_sim_stop(void) { Machine::stop(); }

FERRO_SIM_CONTROL const char* ferro_sim_last_error(void) { return last_error.c_str(); }

FERRO_SIM_CONTROL size_t ferro_sim_sharing(char* buffer, size_t size) {
  const std::lock_guard guard(Machine::lock());
  auto* const sharing = Machine::current().sharing();
  return copy_text(sharing == nullptr ? "" : sharing->path(), buffer, size);
}

FERRO_SIM_CONTROL size_t ferro_sim_counters(char* buffer, size_t size) {
  const std::lock_guard guard(Machine::lock());
  return copy_text(Machine::current().counters().to_json(), buffer, size);
}

FERRO_SIM_CONTROL void* ferro_sim_kernel(const char* name) {
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  if (cuModuleLoadData(&module, ".version 9.0") != CUDA_SUCCESS ||
      cuModuleGetFunction(&kernel, module, name) != CUDA_SUCCESS) {
    return nullptr;
  }
  return kernel;
}

FERRO_SIM_CONTROL int ferro_sim_launch(void* kernel, void* stream, unsigned grid_x, unsigned grid_y,
                                       unsigned grid_z, unsigned threads) {
  return cuLaunchKernel(static_cast<CUfunction>(kernel), grid_x, grid_y, grid_z, threads, 1, 1, 0,
                        static_cast<CUstream>(stream), nullptr, nullptr);
}

FERRO_SIM_CONTROL void ferro_sim_reset_counters(void) {
  const std::lock_guard guard(Machine::lock());
  Machine::current().counters().reset();
}

FERRO_SIM_CONTROL uint64_t ferro_sim_calls(const char* function) {
  const std::lock_guard guard(Machine::lock());
  return Machine::current().counters().of(function).calls;
}

FERRO_SIM_CONTROL size_t ferro_sim_report(int ranges, char* buffer, size_t size) {
  const std::lock_guard guard(Machine::lock());
  return copy_text(Machine::current().report(ranges != 0), buffer, size);
}

FERRO_SIM_CONTROL int ferro_sim_add_fault(const char* function, const char* when, uint64_t value,
                                          int result) {
  Fault fault;
  fault.function = function;
  const std::string kind = when;
  if (kind == "call") {
    fault.when = Fault::When::kCall;
  } else if (kind == "after") {
    fault.when = Fault::When::kAfterCalls;
  } else if (kind == "bytes") {
    fault.when = Fault::When::kBytes;
  } else {
    return fail("a fault is due at \"call\", \"after\" or \"bytes\", not \"" + kind + "\"");
  }
  if (result == CUDA_SUCCESS) {
    return fail("a fault needs an error as its result, not CUDA_SUCCESS");
  }
  fault.value = value;
  fault.result = static_cast<CUresult>(result);
  const std::lock_guard guard(Machine::lock());
  Machine::current().faults().add(std::move(fault));
  return succeed();
}

FERRO_SIM_CONTROL void ferro_sim_clear_faults(void) {
  const std::lock_guard guard(Machine::lock());
  Machine::current().faults().clear();
}

FERRO_SIM_CONTROL void ferro_sim_drain(void) {
  const std::lock_guard guard(Machine::lock());
  Machine::current().scheduler().run_all();
}

FERRO_SIM_CONTROL uint64_t ferro_sim_pending(void) {
  const std::lock_guard guard(Machine::lock());
  return Machine::current().scheduler().pending();
}

FERRO_SIM_CONTROL uint64_t ferro_sim_waiting_threads(void) {
  const std::lock_guard guard(Machine::lock());
  return Machine::current().scheduler().waiting_threads();
}

FERRO_SIM_CONTROL uint64_t ferro_sim_allocated_bytes(int device) {
  const std::lock_guard guard(Machine::lock());
  Machine& machine = Machine::current();
  return device >= 0 && device < machine.device_count() ? machine.device(device).memory.allocated()
                                                        : 0;
}

FERRO_SIM_CONTROL uint64_t ferro_sim_reserved_address_bytes(void) {
  const std::lock_guard guard(Machine::lock());
  return Machine::current().space().reserved_bytes();
}

FERRO_SIM_CONTROL int ferro_sim_peek(uint64_t address, void* destination, size_t bytes) {
  const std::lock_guard guard(Machine::lock());
  std::vector<ferro::sim::Segment> segments;
  if (!locate(Machine::current(), address, bytes, segments)) {
    return fail("the range is not mapped");
  }
  auto* to = static_cast<std::byte*>(destination);
  for (const auto& segment : segments) {
    segment.memory->read(segment.offset, to, segment.bytes);
    to += segment.bytes;
  }
  return succeed();
}

FERRO_SIM_CONTROL int ferro_sim_poke(uint64_t address, const void* source, size_t bytes) {
  const std::lock_guard guard(Machine::lock());
  std::vector<ferro::sim::Segment> segments;
  if (!locate(Machine::current(), address, bytes, segments)) {
    return fail("the range is not mapped");
  }
  const auto* from = static_cast<const std::byte*>(source);
  for (const auto& segment : segments) {
    segment.memory->write(segment.offset, from, segment.bytes);
    from += segment.bytes;
  }
  return succeed();
}

FERRO_SIM_CONTROL void ferro_sim_set_trace(int on) {
  const std::lock_guard guard(Machine::lock());
  Machine::current().counters().set_trace(on != 0);
}

FERRO_SIM_CONTROL size_t ferro_sim_trace(char* buffer, size_t size) {
  const std::lock_guard guard(Machine::lock());
  std::string text;
  for (const std::string& line : Machine::current().counters().trace()) {
    text += line + "\n";
  }
  return copy_text(text, buffer, size);
}
