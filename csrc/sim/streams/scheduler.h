// The order of execution.
//
// Every ordering rule of CUDA becomes edges between operations when an operation is submitted:
// stream order, event versions, the legacy default stream, graph edges. In eager time an operation
// runs when it is submitted. In adversarial time it stays queued until a random turn, a full queue
// or a wait for it; then the scheduler picks among the ready operations with a seeded generator. In
// clock time an operation starts when it is submitted and all its predecessors have ended. Its
// effects appear once the host's clock has passed its end. This clock is virtual, and all host
// threads share it: calls and the program advance it by their costs, and a wait sets it to the end
// of the awaited work. Guarded by the machine's lock, which is released while a host function runs.
// Invariants: an operation is ready iff it is queued and all operations before it are done;
// pending() = queued + running; operations run in the order of their ends in clock time.
#pragma once

#include "sim/settings/config.h"
#include "sim/streams/work.h"

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

namespace ferro::sim {

using Clock = std::chrono::steady_clock;

class Operation;
// Null stands for an operation that was done when it was submitted.
using OperationPtr = std::shared_ptr<Operation>;

class Operation {
 public:
  bool done() const { return state_ == State::kDone; }
  // Ascends in the order of submission.
  std::uint64_t id() const { return id_; }
  // Valid once done.
  Clock::time_point finished_at() const { return finished_at_; }

 private:
  friend class Scheduler;
  enum class State : std::uint8_t { kQueued, kRunning, kDone };

  std::uint64_t id_ = 0;
  int device_ = 0;
  State state_ = State::kQueued;
  Work work_;
  std::vector<OperationPtr> before_;
  std::vector<OperationPtr> after_;
  std::size_t unfinished_before_ = 0;
  // Clock time. Until the operation is ready, the start is a lower bound.
  Nanoseconds start_ = 0;
  Nanoseconds end_ = 0;
  bool overran_ = false;
  std::size_t ready_index_ = 0;
  std::uint64_t wanted_by_ = 0;
  Clock::time_point finished_at_;
};

struct HostRange {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
};

class Scheduler {
 public:
  // Performs work on a device at once. The scheduler makes host calls itself.
  using Perform = std::function<void(const Work& work, int device)>;

  Scheduler(Perform perform, std::mutex& lock, const MachineConfig& config);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  bool eager() const { return config_.mode == TimeMode::kEager; }
  bool timed() const { return config_.mode == TimeMode::kClock; }
  // Operations in `before` that are null or done are ignored. Returns null if the work is already
  // done.
  OperationPtr submit(Work work, int device, std::span<const OperationPtr> before);
  // Called once in each API call. Adversarial: sometimes runs a few ready operations. Clock: runs
  // the operations whose end has passed.
  void take_turn();

  // Clock time: advances the host's clock. No-op in the other modes.
  void spend(double microseconds) {
    if (timed()) {
      host_time_ += std::llround(microseconds * 1000);
    }
  }
  // Must be called before the program's work is submitted: accounts for the program's own time, and
  // makes the host wait while the launch queue is full.
  void prepare_submission();

  // Makes the host wait for operations: runs them and their predecessors, in a random legal order;
  // in clock time also everything that ends before them.
  void run_until_done(std::span<const OperationPtr> wanted);
  // All work of the device, and copies of others from or to this memory of the host.
  void run_device(int device, HostRange memory = {});
  void run_all();

  std::size_t pending() const { return pending_.size(); }
  // The number of host threads that wait for work. Another thread can call this while they have
  // released the lock.
  std::size_t waiting_threads() const { return waiting_threads_; }
  std::size_t executed() const { return executed_; }

  // The virtual clock in clock time, otherwise the system's.
  Clock::time_point now() const;
  // Clock time: the host's clock, and the time up to now in which a device had work; otherwise 0.
  Nanoseconds host_time() const { return host_time_; }
  Nanoseconds busy_time(int device) const;

 private:
  void make_ready(const OperationPtr& operation);
  void run_one_ready();
  // Runs the operation that ends first, and advances the host's clock to at least that end.
  void run_next_end();
  void start(const OperationPtr& operation);
  void finish(const OperationPtr& operation);
  void call_host(const HostCall& call);
  void start_host(const OperationPtr& operation);
  void run_host(const OperationPtr& operation);
  void host_worker();
  void run_timed_until_done(std::span<const OperationPtr> wanted);
  void run_in_any_order_until_done(std::span<const OperationPtr> wanted);
  // Marks the operations that `wanted` depends on, and lists the ready ones. False when all of
  // `wanted` is done.
  bool collect(std::span<const OperationPtr> wanted, std::uint64_t waiter,
               std::vector<OperationPtr>& ready);
  OperationPtr take_random(std::vector<OperationPtr>& operations);

  const Perform perform_;
  std::mutex& lock_;
  const MachineConfig config_;
  std::mt19937_64 random_;
  std::uint64_t turn_threshold_;
  std::uint64_t next_id_ = 1;
  std::uint64_t next_waiter_ = 1;
  std::size_t executed_ = 0;
  std::size_t waiting_threads_ = 0;
  std::vector<OperationPtr> ready_;
  std::unordered_map<std::uint64_t, OperationPtr> pending_;
  // Clock time: the ready operations, by their end and in the order of submission.
  std::map<std::pair<Nanoseconds, std::uint64_t>, OperationPtr> ends_;
  Nanoseconds host_time_ = 0;
  // The union of the times in which a device has work; starts only grow.
  struct Busy {
    Nanoseconds total = 0;
    Nanoseconds until = 0;
  };
  std::vector<Busy> busy_;
  // Operations that became ready, for each waiting host thread.
  std::unordered_map<std::uint64_t, std::vector<OperationPtr>> waiters_;

  // Host functions run on a separate thread, as those of a driver do: the caller of the API may
  // hold locks that they take. Functions that wait for others get a thread each.
  std::thread worker_;
  std::deque<OperationPtr> host_queue_;
  std::condition_variable_any host_work_;
  std::condition_variable_any host_done_;
  std::size_t threads_ = 0;  // of functions that wait
  bool stopping_ = false;
};

}  // namespace ferro::sim
