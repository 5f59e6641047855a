// The order of work: events, streams and captures.
#include "ferro/driver/call_scope.h"
#include "ferro/driver/driver.h"

namespace ferro {
namespace {

CUevent raw(EventId event) { return reinterpret_cast<CUevent>(event); }
CUcontext raw(ContextId context) { return reinterpret_cast<CUcontext>(context); }

}  // namespace

ContextId Driver::context_of(StreamId stream) {
  const CallScope scope(*this);
  CUcontext context = nullptr;
  expect(api_.stream_get_ctx(raw(stream), &context), "cuStreamGetCtx");
  return to_id(context);
}

EventId Driver::create_event(ContextId context) {
  const CallScope scope(*this, raw(context));
  CUevent event = nullptr;
  expect(api_.event_create(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  return static_cast<EventId>(reinterpret_cast<std::uint64_t>(event));
}

bool Driver::record(EventId event, StreamId stream, ContextId* other) {
  const CallScope scope(*this);
  // An event of a capture cannot be waited for once the capture has ended, which another thread may
  // do before the second question below.
  if (captures(stream)) {
    return false;
  }
  count(DriverCall::kEventRecord);
  const CUresult result = api_.event_record(raw(event), raw(stream));
  if (result == CUDA_ERROR_INVALID_HANDLE) {
    // Queried only after the failure: streams of other devices are rare, and a query before each
    // record would cost time.
    if (const ContextId context = context_of(stream); context != own_context()) {
      if (other != nullptr) {
        *other = context;
      }
      return false;
    }
  }
  expect(result, "cuEventRecord");
  // Queried after the record, because another thread may begin a capture at any moment.
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return api_.stream_is_capturing(raw(stream), &status) == CUDA_SUCCESS &&
         status == CU_STREAM_CAPTURE_STATUS_NONE;
}

bool Driver::record_context(EventId event, ContextId context) {
  const CallScope scope(*this);
  if (!has_context_points()) {
    refuse("cuCtxRecordEvent", CUDA_ERROR_NOT_SUPPORTED);
  }
  count(DriverCall::kEventRecord);
  const CUresult result = api_.ctx_record_event(raw(context), raw(event));
  if (result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
    return false;
  }
  expect(result, "cuCtxRecordEvent");
  return true;
}

bool Driver::is_complete(EventId event) {
  const CallScope scope(*this);
  count(DriverCall::kEventQuery);
  const CUresult result = api_.event_query(raw(event));
  if (result == CUDA_ERROR_NOT_READY) {
    return false;
  }
  expect(result, "cuEventQuery");
  return true;
}

void Driver::wait(EventId event) {
  const CallScope scope(*this);
  count(DriverCall::kEventWait);
  expect(api_.event_synchronize(raw(event)), "cuEventSynchronize");
}

bool Driver::captures(StreamId stream, ContextId context) {
  const CallScope scope(*this, raw(context));
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult asked = api_.stream_is_capturing(raw(stream), &status);
  // The driver's answer for the legacy stream while a blocking stream of its context captures.
  if (asked == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    return true;
  }
  expect(asked, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool Driver::stream_wait(EventId event, StreamId stream) {
  const CallScope scope(*this);
  if (captures(stream)) {
    return false;
  }
  count(DriverCall::kStreamWait);
  expect(api_.stream_wait_event(raw(stream), raw(event), CU_EVENT_WAIT_DEFAULT),
         "cuStreamWaitEvent");
  return true;
}

void Driver::join_in_capture(EventId event, StreamId other, StreamId stream) {
  const CallScope scope(*this);
  count(DriverCall::kEventRecord);
  expect(api_.event_record(raw(event), raw(other)), "cuEventRecord");
  count(DriverCall::kStreamWait);
  expect(api_.stream_wait_event(raw(stream), raw(event), CU_EVENT_WAIT_DEFAULT),
         "cuStreamWaitEvent");
}

void Driver::wait_for_device(ContextId context) {
  const CallScope scope(*this, raw(context));
  count(DriverCall::kEventWait);
  void* memory = nullptr;
  expect(api_.mem_host_alloc(&memory, 1, 0), "cuMemHostAlloc");
  expect(api_.mem_free_host(memory), "cuMemFreeHost");
}

CaptureInfo Driver::capture_info(StreamId stream) {
  const CallScope scope(*this);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuuint64_t id = 0;
  const CUresult result =
      api_.stream_get_capture_info(raw(stream), &status, &id, nullptr, nullptr, nullptr, nullptr);
  // The driver refuses to query the legacy default stream while another stream of its context
  // captures. It does not capture itself, but ordering against it must wait for the capture's end.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) {
    return {CaptureStatus::kActive, 0};
  }
  expect(result, "cuStreamGetCaptureInfo");
  switch (status) {
    case CU_STREAM_CAPTURE_STATUS_ACTIVE:
      return {CaptureStatus::kActive, id};
    case CU_STREAM_CAPTURE_STATUS_INVALIDATED:
      return {CaptureStatus::kInvalidated, id};
    case CU_STREAM_CAPTURE_STATUS_NONE:
      break;
  }
  return {};
}

}  // namespace ferro
