// Driver functions: events, and streams that wait for them.
#include "sim/driver/submission.h"

using ferro::sim::Context;
using ferro::sim::Event;
using ferro::sim::GraphNode;
using ferro::sim::Machine;
using ferro::sim::Marker;
using ferro::sim::OperationPtr;
using ferro::sim::Stream;

namespace {

// Queries and waits of the host have no meaning for an event that a capture recorded.
CUresult refuse_captured(Machine& machine, const Event& event) {
  if (event.capture != nullptr) {
    if (event.capture->ended() || !event.capture->active()) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    event.capture->invalidate();
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  return machine.refuse_during_capture();
}

// Makes the event complete when `operation` is done.
void set_point(Machine& machine, const std::shared_ptr<Event>& event, OperationPtr operation) {
  event->capture = nullptr;
  event->recorded = true;
  event->operation = operation;
  event->queries = 0;
  event->finished_at = machine.scheduler().now();
  if (event->exported) {
    machine.scheduler().run_until_done({&operation, 1});
  }
}

CUresult record(Machine& machine, CUevent event_handle, CUstream stream_handle, bool external) {
  const auto event = machine.find_event(event_handle);
  Stream* stream = machine.find_stream(stream_handle);
  if (stream == nullptr) {
    return machine.unknown_stream();
  }
  if (event == nullptr || event->context != stream->context) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (stream->capture != nullptr && !external) {
    if (!stream->capture->active()) {
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    event->capture = stream->capture;
    event->capture_front = stream->capture_front;
    return CUDA_SUCCESS;
  }
  GraphNode* node = nullptr;
  if (const CUresult result =
          enqueue(machine, stream_handle, CU_GRAPH_NODE_TYPE_EVENT_RECORD, Marker{}, &node)) {
    return result;
  }
  if (node != nullptr) {
    node->event = event;
    return CUDA_SUCCESS;
  }
  set_point(machine, event, machine.scheduler().eager() ? nullptr : stream->tail);
  return CUDA_SUCCESS;
}

// Records the event after all work of the context. A capture of one of its streams becomes invalid,
// in any mode and of any thread: here the driver ignores the thread's capture mode.
CUresult record_context(Machine& machine, CUcontext context_handle, CUevent event_handle) {
  Context* context = machine.find_context(context_handle);
  if (context == nullptr) {
    return CUDA_ERROR_INVALID_CONTEXT;
  }
  const auto event = machine.find_event(event_handle);
  if (event == nullptr || event->context != context) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : machine.captures()) {
    if (capture->has_stream_of(*context)) {
      capture->invalidate();
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  if (result == CUDA_SUCCESS) {
    set_point(machine, event, submit_context_point(machine.scheduler(), *context));
  }
  return result;
}

// A wait that joins a stream to a capture, or orders it within the capture.
CUresult wait_captured(Stream& stream, const Event& event) {
  const auto& capture = event.capture;
  if (capture->ended()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!capture->active()) {
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  if (stream.capture != nullptr && stream.capture != capture) {
    stream.capture->invalidate();
    capture->invalidate();
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (&stream == &stream.context->legacy) {
    capture->invalidate();
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  capture->join(capture, stream, event.capture_front);
  return CUDA_SUCCESS;
}

CUresult wait(Machine& machine, CUstream stream_handle, CUevent event_handle, bool external) {
  const auto event = machine.find_event(event_handle);
  Stream* stream = machine.find_stream(stream_handle);
  if (event == nullptr || stream == nullptr) {
    return stream == nullptr ? machine.unknown_stream() : CUDA_ERROR_INVALID_HANDLE;
  }
  if (stream->capture != nullptr && external) {
    GraphNode* node = nullptr;
    const CUresult result =
        enqueue(machine, stream_handle, CU_GRAPH_NODE_TYPE_WAIT_EVENT, Marker{}, &node);
    if (node != nullptr) {
      node->event = event;
    }
    return result;
  }
  if (event->capture != nullptr) {
    return wait_captured(*stream, *event);
  }
  if (stream->capture != nullptr) {
    if (!stream->capture->active()) {
      return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (!event->recorded) {
      return CUDA_SUCCESS;
    }
    stream->capture->invalidate();
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (const CUresult result = refuse_implicit_dependency(machine, *stream)) {
    return result;
  }
  if (!event->complete()) {
    wait_for(machine.scheduler(), *stream, event->operation);
  }
  return CUDA_SUCCESS;
}

CUresult elapsed(Machine& machine, float* milliseconds, CUevent start_handle, CUevent end_handle) {
  const auto start = machine.find_event(start_handle);
  const auto end = machine.find_event(end_handle);
  if (start == nullptr || end == nullptr || !start->recorded || !end->recorded ||
      ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (!start->complete() || !end->complete()) {
    return CUDA_ERROR_NOT_READY;
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->finished_at - start->finished_at).count();
  return CUDA_SUCCESS;
}

}  // namespace

FERRO_SIM_API cuEventCreate(CUevent* out, unsigned flags) {
  FERRO_SIM_CONTEXT_CALL(0);
  constexpr unsigned kKnown =
      CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  const bool untimed_ipc =
      (flags & CU_EVENT_INTERPROCESS) == 0 || (flags & CU_EVENT_DISABLE_TIMING) != 0;
  if (out == nullptr || (flags & ~kKnown) != 0 || !untimed_ipc) {
    return call.finish(CUDA_ERROR_INVALID_VALUE);
  }
  auto event = std::make_shared<Event>();
  event->context = &call.context();
  event->flags = flags;
  *out = reinterpret_cast<CUevent>(event.get());
  call.context().events.emplace(event.get(), std::move(event));
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuEventDestroy_v2(CUevent handle) {
  FERRO_SIM_CALL(0);
  const auto event = call.machine().find_event(handle);
  if (event == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_HANDLE);
  }
  event->context->events.erase(event.get());
  return CUDA_SUCCESS;
}

FERRO_SIM_API cuEventRecord(CUevent event, CUstream stream) {
  FERRO_SIM_CALL(0);
  return call.finish(record(call.machine(), event, stream, false));
}

FERRO_SIM_API cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  FERRO_SIM_CALL(0);
  return call.finish(
      record(call.machine(), event, stream, (flags & CU_EVENT_RECORD_EXTERNAL) != 0));
}

FERRO_SIM_API cuCtxRecordEvent(CUcontext context, CUevent event) {
  FERRO_SIM_CALL(0);
  return call.finish(record_context(call.machine(), context, event));
}

FERRO_SIM_API cuEventQuery(CUevent handle) {
  FERRO_SIM_CALL(0);
  const auto event = call.machine().find_event(handle);
  if (event == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_HANDLE);
  }
  if (const CUresult result = refuse_captured(call.machine(), *event)) {
    return call.finish(result);
  }
  if (!event->complete() && ++event->queries == call.machine().config().polls) {
    const OperationPtr operation = event->operation;
    call.machine().scheduler().run_until_done({&operation, 1});
  }
  return call.finish(event->complete() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

FERRO_SIM_API cuEventSynchronize(CUevent handle) {
  FERRO_SIM_CALL(0);
  const auto event = call.machine().find_event(handle);
  if (event == nullptr) {
    return call.finish(CUDA_ERROR_INVALID_HANDLE);
  }
  if (const CUresult result = refuse_captured(call.machine(), *event)) {
    return call.finish(result);
  }
  const OperationPtr operation = event->operation;
  call.machine().scheduler().run_until_done({&operation, 1});
  return call.finish(event->context->sticky_error);
}

FERRO_SIM_API cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  FERRO_SIM_CALL(0);
  return call.finish(elapsed(call.machine(), milliseconds, start, end));
}

FERRO_SIM_API cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  FERRO_SIM_CALL(0);
  return call.finish(wait(call.machine(), stream, event, (flags & CU_EVENT_WAIT_EXTERNAL) != 0));
}
