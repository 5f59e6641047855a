#include "ferro/adapter/history/history.h"

#include "ferro/adapter/history/gathering.h"
#include "ferro/adapter/history/request_tag.h"
#include "ferro/adapter/history/tag_limits.h"
#include "ferro/adapter/torch/convert.h"

#include <array>
#include <memory>

namespace ferro {
namespace {

using TraceEntry = c10::cuda::CUDACachingAllocator::TraceEntry;
using RecordContext = c10::cuda::CUDACachingAllocator::RecordContext;

constexpr std::uint32_t bit_of(TraceEntry::Action action) {
  return std::uint32_t{1} << static_cast<unsigned>(action);
}

TraceEntry::Action action_of(MemoryEvent event) {
  constexpr std::array kActions = {TraceEntry::ALLOC, TraceEntry::FREE_REQUESTED,
                                   TraceEntry::FREE_COMPLETED, TraceEntry::SEGMENT_MAP,
                                   TraceEntry::SEGMENT_UNMAP};
  return kActions[static_cast<std::size_t>(event)];
}

// For readers of the history: why pages were mapped or unmapped, how many moved, and the time.
std::string note_of(const EventFacts& event) {
  std::string note = std::string("ferro_alloc: ") + event.range.reason;
  if (event.what == MemoryEvent::kMapped && event.range.nanoseconds != 0) {
    note += ", " + std::to_string(event.range.pages_moved) + " pages moved, " +
            std::to_string(event.range.nanoseconds / 1000) + " us";
  }
  return note;
}

void count(const EventFacts& event, TagSums& tags) {
  if (event.what == MemoryEvent::kAllocate) {
    LimitedRequest* limited = nullptr;
    if (*event.tag == 0) {
      *event.tag = tag_of_request(event.pool);
      limited = LimitedRequest::of_thread();
    }
    if (*event.tag == 0) {
      return;
    }
    if (limited == nullptr) {
      tags.on_allocate(*event.tag, event.block_bytes);
    } else if (!limited->count(tags, *event.tag, event.block_bytes)) {
      *event.tag = 0;
    }
  } else if (event.what == MemoryEvent::kFreeRequested && *event.tag != 0) {
    tags.on_free(std::exchange(*event.tag, BlockTag{0}), event.block_bytes);
  }
}

}  // namespace

ThreadAnnotations& thread_annotations() {
  thread_local ThreadAnnotations annotations;
  return annotations;
}

HistorySettings checked_settings(bool enabled,
                                 c10::cuda::CUDACachingAllocator::CreateContextFn recorder,
                                 std::size_t max_entries, RecordContext when, bool clear,
                                 const std::vector<std::string>& skip_actions) {
  TORCH_CHECK(when == RecordContext::NEVER || recorder != nullptr,
              "recording contexts needs a function that makes them");
  HistorySettings settings{.enabled = enabled,
                           .recorder = enabled ? recorder : nullptr,
                           .max_entries = max_entries,
                           .when = enabled ? when : RecordContext::NEVER,
                           .clear = clear || !enabled};
  for (const std::string& action : skip_actions) {
    settings.skipped |= bit_of(c10::CachingDeviceAllocator::parseTraceEntryAction(action));
  }
  return settings;
}

void History::record(const HistorySettings& settings) {
  const MutexLock lock(settings_mutex_);
  // The level falls first and rises last, so a thread that sees the level also sees its recorder.
  level_.store(RecordContext::NEVER);
  sample(settings.sample_bytes);
  skipped_.store(settings.skipped);
  recorder_.store(settings.recorder);
  ring_.set_capacity(settings.max_entries);
  if (settings.clear) {
    ring_.clear();
  }
  enabled_.store(settings.enabled);
  level_.store(settings.when);
  observe();
}

void History::observe() {
  core_.set_observer(has_listeners() || tags_.load() != nullptr ? this : nullptr);
}

void History::attach_tracker(Tracker tracker) {
  const MutexLock lock(settings_mutex_);
  const TrackerList* before = trackers_.load();
  auto after = std::make_unique<TrackerList>();
  if (before != nullptr) {
    *after = *before;
  }
  after->push_back(std::move(tracker));
  trackers_.store(after.release());
  observe();
}

void History::count_tags() {
  const MutexLock lock(settings_mutex_);
  if (tags_.load() == nullptr) {
    tags_.store(new TagSums, std::memory_order_release);
    observe();
  }
}

CallContext History::gather_now() const {
  const auto recorder = recorder_.load(std::memory_order_relaxed);
  return recorder != nullptr && !NoGathering::is_on() ? recorder() : nullptr;
}

bool History::is_skipped(TraceEntry::Action action) const {
  return (skipped_.load(std::memory_order_relaxed) & bit_of(action)) != 0;
}

std::vector<History::TraceEntry> History::entries() const {
  return ring_.read<TraceEntry>([](const TraceRecord& record) { return record.entry(); });
}

void History::add(TraceRecord&& record) noexcept {
  try {
    if (const TrackerList* trackers = trackers_.load(std::memory_order_acquire)) {
      queue_for_trackers(*trackers, record.entry());
    }
    if (enabled_.load(std::memory_order_relaxed) && !is_skipped(record.action())) {
      ring_.add(std::move(record));
    }
  } catch (...) {
    // The host lacks memory for the entry. The history ends, the program continues.
    enabled_.store(false);
  }
}

void History::on_event(const EventFacts& event) noexcept {
  if (TagSums* sums = tags()) {
    count(event, *sums);
  }
  if (!has_listeners() || (is_skipped(action_of(event.what)) && !has_trackers())) {
    return;
  }
  try {
    add(record_of(event));
  } catch (...) {
    enabled_.store(false);  // as in add()
  }
}

void History::deliver() noexcept {
  const NoGathering under_the_climb_lock;
  deliver_to_trackers();
}

TraceRecord History::record_of(const EventFacts& event) const {
  TraceRecord record(action_of(event.what), device_, address_of(event.ptr), event.size,
                     reinterpret_cast<void*>(event.stream), to_mempool_id(event.pool));
  if (event.context != nullptr && level_.load(std::memory_order_relaxed) >= RecordContext::ALLOC) {
    record.rare().context = std::static_pointer_cast<c10::GatheredContext>(event.context);
  }
  const ThreadAnnotations& thread = thread_annotations();
  thread.annotate(record);
  if (event.what == MemoryEvent::kAllocate && *event.tag != 0 && thread.user_metadata.empty()) {
    record.rare().user_metadata = tag_names().name_of(*event.tag);
  }
  if (!thread.internal_metadata.empty()) {
    record.rare().internal_metadata = thread.internal_metadata;
  }
  if (event.range.reason != nullptr) {
    record.rare().note = note_of(event);
  }
  return record;
}

void History::on_annotation(const BlockView& block, StreamId stream, const PoolId& pool,
                            const std::string& metadata, const CallContext& context) {
  if (const auto action = annotate_action()) {
    TraceRecord record(*action, device_, address_of(block.ptr), block.requested,
                       reinterpret_cast<void*>(stream), to_mempool_id(pool));
    thread_annotations().annotate(record);
    record.rare().context = std::static_pointer_cast<c10::GatheredContext>(context);
    record.rare().user_metadata = metadata;
    add(std::move(record));
    deliver_to_trackers();
  }
}

void History::on_out_of_memory(std::size_t device_free, std::size_t size, StreamId stream,
                               const PoolId& pool, const CallContext& context) {
  TraceRecord record(TraceEntry::OOM, device_, device_free, size, reinterpret_cast<void*>(stream),
                     to_mempool_id(pool));
  thread_annotations().annotate(record);
  if (level_.load(std::memory_order_relaxed) >= RecordContext::ALLOC) {
    record.rare().context = std::static_pointer_cast<c10::GatheredContext>(context);
  }
  add(std::move(record));
  deliver_to_trackers();
}

void History::on_snapshot(std::size_t active_bytes) {
  // Device 0 and no pool, as in PyTorch.
  TraceRecord record(TraceEntry::SNAPSHOT, 0, 0, active_bytes, nullptr, c10::MempoolId_t{0, 0});
  thread_annotations().annotate(record);
  add(std::move(record));
  deliver_to_trackers();
}

}  // namespace ferro
