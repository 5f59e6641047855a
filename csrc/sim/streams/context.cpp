#include "sim/streams/context.h"

#include <algorithm>

namespace ferro::sim {
namespace {

void append_unfinished(std::vector<OperationPtr>& operations, const OperationPtr& operation) {
  if (operation != nullptr && !operation->done()) {
    operations.push_back(operation);
  }
}

// The order of hash tables varies from run to run, but a seed must mean the same run.
void sort_by_submission(std::vector<OperationPtr>& operations) {
  std::ranges::sort(operations, {}, [](const OperationPtr& operation) { return operation->id(); });
}

// The work of one stream that new work must follow, by stream order and the legacy rule.
std::vector<OperationPtr> predecessors(Stream& stream) {
  std::vector<OperationPtr> before;
  append_unfinished(before, stream.tail);
  Context& context = *stream.context;
  if (&stream != &context.legacy) {
    if (stream.blocking()) {
      append_unfinished(before, context.legacy.tail);
    }
    return before;
  }
  for (const auto& [key, other] : context.streams) {
    if (other->blocking()) {
      append_unfinished(before, other->tail);
    }
  }
  for (const auto& [thread, other] : context.per_thread) {
    append_unfinished(before, other->tail);
  }
  std::erase_if(context.orphans, [](const OperationPtr& tail) { return tail->done(); });
  before.insert(before.end(), context.orphans.begin(), context.orphans.end());
  sort_by_submission(before);
  return before;
}

}  // namespace

void submit(Scheduler& scheduler, Stream& stream, Work work,
            std::span<const OperationPtr> also_after) {
  if (scheduler.eager()) {
    scheduler.submit(std::move(work), stream.context->device, {});
    return;
  }
  std::vector<OperationPtr> before = predecessors(stream);
  for (const OperationPtr& operation : also_after) {
    append_unfinished(before, operation);
  }
  stream.tail = scheduler.submit(std::move(work), stream.context->device, before);
}

void wait_for(Scheduler& scheduler, Stream& stream, const OperationPtr& operation) {
  if (operation != nullptr && !operation->done()) {
    submit(scheduler, stream, Marker{}, {&operation, 1});
  }
}

OperationPtr submit_context_point(Scheduler& scheduler, Context& context) {
  if (scheduler.eager()) {
    return nullptr;
  }
  // The legacy stream's predecessors are the tails of all blocking streams.
  std::vector<OperationPtr> before = predecessors(context.legacy);
  for (const auto& [key, stream] : context.streams) {
    if (!stream->blocking()) {
      append_unfinished(before, stream->tail);
    }
  }
  for (const OperationPtr& tail : context.non_blocking_orphans) {
    append_unfinished(before, tail);
  }
  sort_by_submission(before);
  return scheduler.submit(Point{}, context.device, before);
}

std::vector<OperationPtr> tails_of(Stream& stream) { return predecessors(stream); }

}  // namespace ferro::sim
