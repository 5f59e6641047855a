#include "sim/driver/submission.h"

#include "sim/machine/perform.h"

#include <array>
#include <atomic>
#include <cstring>

namespace ferro::sim {
namespace {

// Copies of up to this size from pageable memory return before they are done; the driver waits for
// larger ones.
constexpr std::size_t kStagedBytes = 64 * kKiB;

bool is_pageable(const Machine& machine, std::uintptr_t at) {
  return !machine.space().is_reserved(at) &&
         !machine.host().find(reinterpret_cast<const void*>(at)).has_value();
}

int (*is_read_back)(std::uint64_t address) = nullptr;

// The host gets the thread's answer, because no kernel has written the value on the device. The
// bytes there are those of an earlier owner of the memory.
void answer(Machine& machine, Copy& copy) {
  const ThreadState& thread = machine.thread();
  std::array<std::uint64_t, 2> delivered = {};
  if ((thread.answers.empty() && Machine::counts()->operators == 0) ||
      copy.width > sizeof delivered || copy.height != 1 ||
      !machine.space().is_reserved(copy.from) || machine.space().is_reserved(copy.to)) {
    return;
  }
  if (!thread.answers.empty()) {
    const std::uint64_t value = thread.answers.back();
    delivered = copy.width > sizeof value ? std::array<std::uint64_t, 2>{1, value}
                                          : std::array<std::uint64_t, 2>{value, 0};
  } else if (is_read_back != nullptr && is_read_back(copy.from) == 1) {
    std::atomic_ref(Machine::counts()->reads[FERRO_SIM_UNKNOWN])
        .fetch_add(1, std::memory_order_relaxed);
  } else {
    return;
  }
  const auto* bytes = reinterpret_cast<const std::byte*>(delivered.data());
  copy.staged = std::make_shared<std::vector<std::byte>>(bytes, bytes + copy.width);
}

void stage(Copy& copy) {
  copy.staged = std::make_shared<std::vector<std::byte>>(copy.width * copy.height);
  for (std::size_t row = 0; row < copy.height; ++row) {
    std::memcpy(copy.staged->data() + row * copy.width,
                reinterpret_cast<const void*>(copy.from + row * copy.from_pitch), copy.width);
  }
}

}  // namespace

void set_read_back_observer(int (*is_result)(std::uint64_t)) { is_read_back = is_result; }

CUresult refuse_implicit_dependency(Machine& machine, Stream& stream) {
  if (&stream != &stream.context->legacy) {
    return CUDA_SUCCESS;
  }
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : machine.captures()) {
    if (capture->has_blocking_stream(*stream.context)) {
      capture->invalidate();
      result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return result;
}

CUresult enqueue(Machine& machine, CUstream handle, CUgraphNodeType type, Work work,
                 GraphNode** node) {
  if (node != nullptr) {
    *node = nullptr;
  }
  if (!std::holds_alternative<Marker>(work) && !std::holds_alternative<FreeMemory>(work)) {
    machine.scheduler().prepare_submission();
  }
  Stream* stream = machine.find_stream(handle);
  if (stream == nullptr) {
    return machine.unknown_stream();
  }
  if (!machine.captures().empty()) {
    if (const CUresult result = refuse_implicit_dependency(machine, *stream)) {
      return result;
    }
    if (stream->capture != nullptr && !stream->capture->active()) {
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
  }
  if (Copy* copy = std::get_if<Copy>(&work)) {
    copy->to_device = machine.space().is_reserved(copy->to);
    copy->from_device = copy->staged == nullptr && machine.space().is_reserved(copy->from);
  }
  const bool recorded = stream->capture != nullptr;
  if (const CUresult result = validate(machine, work, stream->context->device, recorded)) {
    return result;
  }
  if (recorded) {
    GraphNode* new_node = stream->capture->record(*stream, type, std::move(work));
    if (node != nullptr) {
      *node = new_node;
    }
    return CUDA_SUCCESS;
  }
  submit(machine.scheduler(), *stream, std::move(work));
  return CUDA_SUCCESS;
}

CUresult enqueue_copy(Machine& machine, CUstream handle, Copy copy) {
  if (copy.width == 0 || copy.height == 0) {
    return CUDA_SUCCESS;
  }
  answer(machine, copy);
  Stream* stream = machine.find_stream(handle);
  const bool queued =
      stream != nullptr && stream->capture == nullptr && !machine.scheduler().eager();
  const bool pageable_source = queued && copy.staged == nullptr && is_pageable(machine, copy.from);
  const bool pageable_target = queued && is_pageable(machine, copy.to);
  if (pageable_source) {
    stage(copy);
  }
  copy.pageable = pageable_source || pageable_target;
  const bool wait = pageable_target || (pageable_source && copy.width * copy.height > kStagedBytes);
  if (stream != nullptr && stream->capture == nullptr && machine.space().is_reserved(copy.from) &&
      !machine.space().is_reserved(copy.to)) {
    copy.thread = Machine::counts();
  }
  const CUresult result = enqueue(machine, handle, CU_GRAPH_NODE_TYPE_MEMCPY, std::move(copy));
  if (result == CUDA_SUCCESS && wait) {
    const Context& context = *stream->context;
    run_stream(machine, *stream);
    return context.sticky_error;
  }
  return result;
}

void run_stream(Machine& machine, Stream& stream) {
  // A copy, because another thread may destroy the stream meanwhile.
  const OperationPtr tail = stream.tail;
  machine.scheduler().run_until_done({&tail, 1});
}

}  // namespace ferro::sim
