#include "sim/machine/machine.h"

#include "sim/machine/perform.h"
#include "sim/settings/visible_cards.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <pthread.h>
#include <utility>

namespace ferro::sim {
namespace {

// Never destroyed: programs call the driver from static destructors.
struct Process {
  std::mutex lock;
  std::unique_ptr<Machine> machine;
  const Machine* of_parent = nullptr;
  std::uint64_t generation = 0;
  std::atomic<bool> forked{false};
};

// The parent's machine is leaked: its thread does not exist here, and the parent may be using the
// memory file that both map.
void after_fork(Process& process) {
  Machine* const inherited = process.machine.release();
  if (inherited == nullptr) return;
  if (inherited->initialised()) process.forked = true;
  process.of_parent = inherited;
}

Process& process() {
  static Process* const instance = [] {
    auto* created = new Process;
    // The lock is held over the fork, so that the child does not inherit a state in the middle of a
    // call.
    pthread_atfork([] { process().lock.lock(); }, [] { process().lock.unlock(); },
                   [] {
                     after_fork(process());
                     process().lock.unlock();
                   });
    return created;
  }();
  return *instance;
}

struct ThreadSlot {
  std::uint64_t generation = 0;
  ThreadState state;
  const std::shared_ptr<ferro_sim_thread_counts> counts =
      std::make_shared<ferro_sim_thread_counts>();
};

// Null before the thread's first call, and after its thread-local objects were destroyed. Static
// destructors of other libraries still call the driver then, with a new slot that is never freed.
constinit thread_local ThreadSlot* thread_slot = nullptr;

struct SlotOwner {
  bool armed = false;  // its destructor runs from the first use on
  ~SlotOwner() { delete std::exchange(thread_slot, nullptr); }
};
thread_local SlotOwner slot_owner;
constinit thread_local bool has_owner = false;

ThreadSlot& own_slot() {
  if (thread_slot == nullptr) {
    thread_slot = new ThreadSlot;
    if (!has_owner) {
      has_owner = true;
      slot_owner.armed = true;
    }
  }
  return *thread_slot;
}

std::unique_ptr<SharedCapacity> join_others(const std::string& sharing) {
  if (sharing.empty()) {
    return nullptr;
  }
  std::unique_ptr<SharedCapacity> joined =
      sharing == "new" ? nullptr : SharedCapacity::open(sharing);
  return joined != nullptr ? std::move(joined) : SharedCapacity::create();
}

}  // namespace

Device::Device(AddressSpace& space, const MachineConfig& config, SharedCapacity* sharing, int index,
               int number)
    : card(number),
      memory(config.total_bytes(), config.backing, sharing, number),
      allocations(space, memory, index) {
  context.device = index;
  context.legacy.context = &context;
}

Machine::Machine(const MachineConfig& config)
    : config_(config),
      generation_(++process().generation),
      sharing_(join_others(config.sharing)),
      space_(config.address_space_bytes),
      scheduler_([this](const Work& work, int device) { perform(*this, work, device); },
                 process().lock, config) {
  show(visible_cards(nullptr, config.devices));
}

void Machine::show(const std::vector<int>& cards) {
  devices_.clear();
  for (const int card : cards) {
    devices_.push_back(
        std::make_unique<Device>(space_, config_, sharing_.get(), device_count(), card));
    devices_.back()->context.legacy.id = next_id();
  }
}

void Machine::initialise() {
  if (std::exchange(initialised_, true)) {
    return;
  }
  const char* const list = std::getenv("CUDA_VISIBLE_DEVICES");
  const bool in_use =
      std::ranges::any_of(devices_, [](const auto& each) { return each->context.active(); });
  if (list != nullptr && !in_use) {
    show(visible_cards(list, config_.devices));
  }
}

std::optional<int> Machine::device_of(int card) const {
  const auto found = std::ranges::find(devices_, card, [](const auto& each) { return each->card; });
  return found == devices_.end() ? std::nullopt
                                 : std::optional(static_cast<int>(found - devices_.begin()));
}

std::mutex& Machine::lock() { return process().lock; }

void Machine::start(const MachineConfig& config) {
  stop();
  auto fresh = std::make_unique<Machine>(config);
  const std::lock_guard guard(lock());
  process().machine.swap(fresh);
}

void Machine::stop() {
  std::unique_ptr<Machine> old;
  {
    const std::lock_guard guard(lock());
    if (process().machine != nullptr && !forked()) {
      process().machine->scheduler().run_all();
    }
    old = std::move(process().machine);
  }
  // Destroyed without the lock, which its worker thread needs to end.
}

Machine& Machine::current() {
  if (process().machine == nullptr) {
    const Machine* const parents = process().of_parent;
    process().machine = std::make_unique<Machine>(parents != nullptr ? parents->settings()
                                                                     : config_from_environment());
  }
  return *process().machine;
}

MachineConfig Machine::settings() const {
  MachineConfig settings = config_;
  if (sharing_ != nullptr) settings.sharing = sharing_->path();
  return settings;
}

bool Machine::forked() { return process().forked.load(std::memory_order_relaxed); }

ThreadState& Machine::thread() {
  ThreadSlot& slot = own_slot();
  if (slot.generation != generation_) {
    slot.state = {};
    slot.generation = generation_;
  }
  return slot.state;
}

const std::shared_ptr<ferro_sim_thread_counts>& Machine::counts() { return own_slot().counts; }

Context* Machine::current_context() {
  const ThreadState& state = thread();
  return state.contexts.empty() ? nullptr : state.contexts.back();
}

Stream* Machine::find_stream(CUstream handle) {
  Context* context = current_context();
  if (handle == nullptr || handle == CU_STREAM_LEGACY) {
    return context == nullptr ? nullptr : &context->legacy;
  }
  if (handle == CU_STREAM_PER_THREAD) {
    if (context == nullptr) {
      return nullptr;
    }
    auto& slot = context->per_thread[std::this_thread::get_id()];
    if (slot == nullptr) {
      slot = std::make_unique<Stream>();
      slot->context = context;
      slot->id = next_id();
    }
    return slot.get();
  }
  auto* stream = reinterpret_cast<Stream*>(handle);
  if (context != nullptr && context->streams.contains(stream)) {
    return stream;
  }
  for (const auto& device : devices_) {
    if (device->context.streams.contains(stream)) {
      return stream;
    }
  }
  return nullptr;
}

std::shared_ptr<Event> Machine::find_event(CUevent handle) {
  for (const auto& device : devices_) {
    const auto& events = device->context.events;
    if (const auto found = events.find(reinterpret_cast<Event*>(handle)); found != events.end()) {
      return found->second;
    }
  }
  return nullptr;
}

Context* Machine::find_context(CUcontext handle) {
  for (const auto& device : devices_) {
    if (device->context.handle() == handle) {
      return &device->context;
    }
  }
  return nullptr;
}

Graph* Machine::find_graph(CUgraph handle) {
  const auto* graph = reinterpret_cast<const Graph*>(handle);
  return find_graph_if([graph](const Graph& other) { return &other == graph; });
}

GraphNode* Machine::find_node(CUgraphNode handle) {
  auto* node = reinterpret_cast<GraphNode*>(handle);
  return find_graph_if([node](const Graph& graph) { return graph.contains(node); }) != nullptr
             ? node
             : nullptr;
}

Graph* Machine::find_graph_if(const std::function<bool(const Graph&)>& is_wanted) {
  for (const auto& capture : captures_) {
    if (Graph* found = capture->graph().find(is_wanted)) {
      return found;
    }
  }
  for (const auto& [key, graph] : graphs_) {
    if (Graph* found = graph->find(is_wanted)) {
      return found;
    }
  }
  return nullptr;
}

std::shared_ptr<GraphExec> Machine::find_exec(CUgraphExec handle) {
  const auto found = execs_.find(reinterpret_cast<GraphExec*>(handle));
  return found == execs_.end() ? nullptr : found->second;
}

CUresult Machine::refuse_during_capture() {
  const CUstreamCaptureMode mode = thread().capture_mode;
  if (captures_.empty() || mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_SUCCESS;
  }
  CUresult result = CUDA_SUCCESS;
  for (const auto& capture : captures_) {
    if (capture->mode() == CU_STREAM_CAPTURE_MODE_RELAXED) {
      continue;
    }
    const bool elsewhere_global =
        mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode() == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (capture->owned_by_this_thread() || elsewhere_global) {
      capture->invalidate();
      result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  return result;
}

bool Machine::note_kernel(const std::string& name) {
  constexpr std::size_t kMaxNames = 100;
  if (kernels_.size() == kMaxNames ||
      std::find(kernels_.begin(), kernels_.end(), name) != kernels_.end()) {
    return false;
  }
  kernels_.push_back(name);
  return true;
}

std::string Machine::report(bool ranges) const {
  char text[640];
  std::string json = "{\"devices\": [";
  for (int i = 0; i < device_count(); ++i) {
    const Device& d = device(i);
    std::snprintf(text, sizeof(text),
                  "%s{\"total_bytes\": %zu, \"allocated_bytes\": %zu, \"peak_bytes\": %zu, "
                  "\"allocations\": %zu, "
                  "\"host_bytes\": %zu, \"streams\": %zu, \"events\": %zu, \"sticky_error\": %d, "
                  "\"busy_ns\": %lld}",
                  i > 0 ? ", " : "", d.memory.capacity(), d.memory.allocated(), d.memory.peak(),
                  d.allocations.count(), d.memory.host_bytes(), d.context.streams.size(),
                  d.context.events.size(), static_cast<int>(d.context.sticky_error),
                  static_cast<long long>(scheduler_.busy_time(i)));
    json += text;
  }
  std::snprintf(text, sizeof(text),
                "], \"reservations\": %zu, \"reserved_bytes\": %zu, \"mappings\": %zu, "
                "\"handles\": %zu, \"host_ranges\": %zu, \"graphs\": %zu, \"graph_execs\": %zu, "
                "\"captures\": %zu, \"pending_operations\": %zu, \"executed_operations\": %zu, "
                "\"injected_faults\": %llu, \"host_ns\": %lld",
                space_.reservations().size(), space_.reserved_bytes(), space_.mappings().size(),
                space_.handle_count(), host_.count(), graphs_.size(), execs_.size(),
                captures_.size(), scheduler_.pending(), scheduler_.executed(),
                static_cast<unsigned long long>(faults_.injected()),
                static_cast<long long>(scheduler_.host_time()));
  json += text;
  if (ranges) {
    json += ", \"ranges\": [";
    bool first = true;
    for (const auto& [base, mapping] : space_.mappings()) {
      std::snprintf(text, sizeof(text),
                    "%s{\"address\": %llu, \"bytes\": %zu, \"device\": %d, \"handle\": %llu}",
                    first ? "" : ", ", base, mapping.bytes(), mapping.pages->device(),
                    mapping.plain ? 0ULL : mapping.pages->id);
      json += text;
      first = false;
    }
    json += "]";
  }
  return json + "}";
}

}  // namespace ferro::sim
