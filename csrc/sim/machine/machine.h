// The simulated machine: devices, one address space, one scheduler, instruments.
//
// There is at most one machine in a process, behind one lock; the driver functions (api_*.cpp) take
// the lock, work on the machine and release it. The machine owns the objects behind all handles of
// the program, and refuses unknown handles.
#pragma once

#include "sim/graphs/capture.h"
#include "sim/graphs/graph.h"
#include "sim/instruments/counters.h"
#include "sim/instruments/faults.h"
#include "sim/machine/modules.h"
#include "sim/memory/address_space.h"
#include "sim/memory/allocations.h"
#include "sim/memory/host_memory.h"
#include "sim/memory/physical_memory.h"
#include "sim/memory/shared_capacity.h"
#include "sim/memory/thread_counts.h"
#include "sim/settings/config.h"
#include "sim/streams/context.h"
#include "sim/streams/scheduler.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace ferro::sim {

struct Device {
  Device(AddressSpace& space, const MachineConfig& config, SharedCapacity* sharing, int index,
         int number);

  const int card;  // its number in the machine
  PhysicalMemory memory;
  Allocations allocations;
  Context context;  // the primary one
};

// The driver's state of a thread.
struct ThreadState {
  std::vector<Context*> contexts;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  // The last one is what small copies to the host deliver in place of the device's bytes: see
  // ferro_sim_answer.
  std::vector<std::uint64_t> answers;
  // The end of the last call in `processor_time`, if the machine measures it.
  std::optional<double> last_call_ended;
};

// The name of a kernel whose module the driver does not know.
inline const std::string kUnnamedKernel = "unnamed kernel";

class Machine {
 public:
  explicit Machine(const MachineConfig& config);
  ~Machine() { space_.clear(); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  // The process's machine. `lock()` must be held for everything that follows it.
  static std::mutex& lock();
  // Runs queued work to its end, then replaces the machine. All handles of the old one become
  // invalid.
  static void start(const MachineConfig& config);
  static void stop();
  // Starts a machine from the environment when there is none.
  static Machine& current();
  // True in a child of fork() whose parent had called cuInit: the driver does not work there. Any
  // other child gets its own machine with the settings of its parent's.
  static bool forked();
  // cuInit: later forks do not get a working driver. The first call also removes the devices that
  // CUDA_VISIBLE_DEVICES hides, unless a context is in use already.
  void initialise();

  const MachineConfig& config() const { return config_; }
  bool initialised() const { return initialised_; }
  int device_count() const { return static_cast<int>(devices_.size()); }
  Device& device(int index) { return *devices_[static_cast<std::size_t>(index)]; }
  const Device& device(int index) const { return *devices_[static_cast<std::size_t>(index)]; }
  // The device of a card; none if the process does not see the card.
  std::optional<int> device_of(int card) const;
  // Null if no other process shares the devices' memory.
  SharedCapacity* sharing() { return sharing_.get(); }
  AddressSpace& space() { return space_; }
  const AddressSpace& space() const { return space_; }
  HostMemory& host() { return host_; }
  const HostMemory& host() const { return host_; }
  Scheduler& scheduler() { return scheduler_; }
  Modules& modules() { return modules_; }
  Counters& counters() { return counters_; }
  FaultPlan& faults() { return faults_; }

  // The settings of a machine that equals this one and shares its cards.
  MachineConfig settings() const;

  // This thread's state; fresh for every machine.
  ThreadState& thread();
  // Those of the calling thread, which it may use without the lock.
  static const std::shared_ptr<ferro_sim_thread_counts>& counts();
  // Null when the thread has none.
  Context* current_context();
  // Null for an unknown handle; 0, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD mean streams of the
  // thread's current context.
  Stream* find_stream(CUstream handle);
  // The error for a handle that `find_stream` does not know.
  CUresult unknown_stream() {
    return current_context() == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_ERROR_INVALID_HANDLE;
  }
  std::shared_ptr<Event> find_event(CUevent handle);
  Context* find_context(CUcontext handle);
  // Finds also child graphs, bodies of conditional nodes, and graphs of running captures.
  Graph* find_graph(CUgraph handle);
  GraphNode* find_node(CUgraphNode handle);
  std::shared_ptr<GraphExec> find_exec(CUgraphExec handle);

  // Captures that have begun and not ended.
  std::vector<std::shared_ptr<Capture>>& captures() { return captures_; }
  // For calls that a capture forbids: invalidates the captures that this thread may not disturb and
  // returns the error, or success when there are none.
  CUresult refuse_during_capture();
  std::unordered_map<Graph*, std::shared_ptr<Graph>>& graphs() { return graphs_; }
  std::unordered_map<GraphExec*, std::shared_ptr<GraphExec>>& execs() { return execs_; }
  unsigned long long next_id() { return next_id_++; }
  // Identifiers of captures are consecutive, as those of a driver.
  unsigned long long next_capture_id() { return next_capture_id_++; }
  // Memory of other processes that cuIpcOpenMemHandle mapped, by address.
  struct OpenedMemory {
    std::uint64_t file_id = 0;
    std::size_t bytes = 0;
    unsigned references = 0;
  };
  std::map<CUdeviceptr, OpenedMemory>& opened_memory() { return opened_memory_; }

  // Names of kernels that were launched outside of operators, in the order of their first launches;
  // at most a hundred. True if the name is new.
  bool note_kernel(const std::string& name);
  const std::vector<std::string>& kernels() const { return kernels_; }

  // The state of the machine as one JSON object, with `ranges` also every mapped range.
  std::string report(bool ranges) const;

 private:
  // The first wanted graph, including those within nodes; null if there is none.
  Graph* find_graph_if(const std::function<bool(const Graph&)>& is_wanted);
  // Makes these cards the devices of the process.
  void show(const std::vector<int>& cards);

  const MachineConfig config_;
  const std::uint64_t generation_;
  bool initialised_ = false;
  const std::unique_ptr<SharedCapacity> sharing_;
  AddressSpace space_;
  HostMemory host_;
  std::vector<std::unique_ptr<Device>> devices_;
  Modules modules_;
  Counters counters_;
  FaultPlan faults_;
  std::vector<std::shared_ptr<Capture>> captures_;
  std::unordered_map<Graph*, std::shared_ptr<Graph>> graphs_;
  std::unordered_map<GraphExec*, std::shared_ptr<GraphExec>> execs_;
  std::map<CUdeviceptr, OpenedMemory> opened_memory_;
  unsigned long long next_id_ = 1;
  unsigned long long next_capture_id_ = 1;
  std::vector<std::string> kernels_;
  Scheduler scheduler_;
};

}  // namespace ferro::sim
