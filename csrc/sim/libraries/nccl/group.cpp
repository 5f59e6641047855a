#include "sim/libraries/nccl/group.h"

namespace ferro::sim::nccl {
namespace {

struct Pending {
  std::shared_ptr<Communicator> communicator;
  std::shared_ptr<Transfer> transfer;
};

struct Group {
  int depth = 0;
  std::vector<Pending> pending;
  std::vector<std::function<Failure()>> meetings;
};

Group& group() {
  thread_local Group instance;
  return instance;
}

// The argument of a host function on a stream. A graph passes it in every replay, at any later
// time. So a captured one is kept until the process ends, and does nothing once its communicator is
// destroyed.
struct Turn {
  std::weak_ptr<Communicator> communicator;
  std::shared_ptr<Communicator> owned;  // null if captured
  std::shared_ptr<Transfer> transfer;
};

template <void (*part)(Communicator&, Transfer&)>
void run(void* argument) {
  auto* const turn = static_cast<Turn*>(argument);
  if (const auto communicator = turn->communicator.lock()) {
    if (!communicator->failure()) {
      part(*communicator, *turn->transfer);
    }
  }
  if (turn->owned != nullptr) {
    delete turn;
  }
}

// Makes the communicator's context current: default streams are then those of its device.
class Current {
 public:
  explicit Current(const Communicator& communicator)
      : pushed_(cuCtxPushCurrent(communicator.device().context) == CUDA_SUCCESS) {}
  ~Current() {
    CUcontext popped = nullptr;
    if (pushed_) {
      cuCtxPopCurrent(&popped);
    }
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const bool pushed_;
};

void submit(const Pending& pending, void (*function)(void*)) {
  const Current current(*pending.communicator);
  const CUstream stream = pending.transfer->stream;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  cuStreamIsCapturing(stream, &status);
  const bool captured = status != CU_STREAM_CAPTURE_STATUS_NONE;
  auto turn = std::make_unique<Turn>(
      Turn{pending.communicator, captured ? nullptr : pending.communicator, pending.transfer});
  const int result = ferro_sim_wait_in_order(stream, function, turn.get());
  if (result == CUDA_SUCCESS) {
    turn.release();
    return;
  }
  const char* name = nullptr;
  cuGetErrorName(static_cast<CUresult>(result), &name);
  pending.communicator->fail(
      {ncclUnhandledCudaError,
       to_string(pending.transfer->terms) +
           " could not be queued on its stream: " + (name != nullptr ? name : "an unknown error")});
}

Failure launch(const std::vector<Pending>& operations) {
  for (const Pending& pending : operations) {
    if (gives(*pending.transfer)) {
      submit(pending, run<contribute>);
    }
  }
  for (const Pending& pending : operations) {
    if (takes(*pending.transfer)) {
      submit(pending, run<complete>);
    }
  }
  for (const Pending& pending : operations) {
    if (Failure failure = pending.communicator->failure()) {
      return failure;
    }
  }
  return {};
}

Failure meet(const std::vector<std::function<Failure()>>& meetings) {
  std::vector<Failure> failures(meetings.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < meetings.size(); ++i) {
    threads.emplace_back([&, i] { failures[i] = meetings[i](); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (Failure& failure : failures) {
    if (failure) {
      return std::move(failure);
    }
  }
  return {};
}

}  // namespace

void start_group() { ++group().depth; }

Failure end_group(bool drop) {
  Group& own = group();
  if (own.depth == 0) {
    return {ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart"};
  }
  if (--own.depth > 0) {
    return {};
  }
  const auto pending = std::exchange(own.pending, {});
  const auto meetings = std::exchange(own.meetings, {});
  if (drop) {
    return {};
  }
  Failure failure = meet(meetings);
  return failure ? failure : launch(pending);
}

Failure add(const std::shared_ptr<Communicator>& communicator, Transfer transfer) {
  if (Failure failure = communicator->failure()) {
    return failure;
  }
  ferro_sim_note_transfer();
  const bool between_two = transfer.peer >= 0;
  transfer.sequence = !between_two      ? communicator->next_collective()
                      : gives(transfer) ? communicator->next_send(transfer.peer)
                                        : communicator->next_receive(transfer.peer);
  const Pending pending{communicator, std::make_shared<Transfer>(std::move(transfer))};
  if (group().depth == 0) {
    return launch({pending});
  }
  group().pending.push_back(pending);
  return {};
}

Failure add(std::function<Failure()> meeting) {
  if (group().depth == 0) {
    return meeting();
  }
  group().meetings.push_back(std::move(meeting));
  return {};
}

}  // namespace ferro::sim::nccl
