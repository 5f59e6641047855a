// The order of execution.
//
// Every ordering rule of CUDA becomes edges between operations when an operation is submitted:
// stream order, event versions, the legacy default stream, graph edges. In eager time an operation
// runs when it is submitted. In adversarial time it stays queued until a random turn, a limit, or
// somebody who waits for it; then the scheduler picks among the ready operations with a seeded
// generator. Guarded by the machine's lock, which is released while a host function runs.
// Invariants: an operation is ready iff it is queued and all operations before it are done;
// pending() = queued + running.
#pragma once

#include "sim/config.h"
#include "sim/work.h"

#include <chrono>
#include <condition_variable>
#include <deque>
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
  std::size_t ready_index_ = 0;
  std::uint64_t wanted_by_ = 0;
  Clock::time_point finished_at_;
};

class Scheduler {
 public:
  Scheduler(Machine& machine, std::mutex& lock, const MachineConfig& config);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  bool eager() const { return config_.mode == TimeMode::kEager; }
  // Operations in `before` that are null or done are ignored. Null when the work is done already.
  OperationPtr submit(Work work, int device, std::span<const OperationPtr> before);
  // Called once an API call: now and then, a few ready operations run.
  void take_turn();

  // The host waits: what is waited for and what comes before it runs, in a random legal order.
  void run_until_done(std::span<const OperationPtr> wanted);
  void run_device(int device);
  void run_all();

  std::size_t pending() const { return pending_.size(); }
  std::size_t executed() const { return executed_; }

 private:
  void run_one_ready();
  void start(const OperationPtr& operation);
  void finish(const OperationPtr& operation);
  void call_host(const HostCall& call);
  void host_worker();
  // Marks what `wanted` needs and lists what of it is ready; false when all of it is done.
  bool collect(std::span<const OperationPtr> wanted, std::uint64_t waiter,
               std::vector<OperationPtr>& ready);
  OperationPtr take_random(std::vector<OperationPtr>& operations);

  Machine& machine_;
  std::mutex& lock_;
  const MachineConfig config_;
  std::mt19937_64 random_;
  std::uint64_t turn_threshold_;
  std::uint64_t next_id_ = 1;
  std::uint64_t next_waiter_ = 1;
  std::size_t executed_ = 0;
  std::vector<OperationPtr> ready_;
  std::unordered_map<std::uint64_t, OperationPtr> pending_;
  // What became ready, for each host thread that waits.
  std::unordered_map<std::uint64_t, std::vector<OperationPtr>> waiters_;

  // Host functions run on a thread of their own, as a driver runs them: the caller of the API may
  // hold locks that they take.
  std::thread worker_;
  std::deque<OperationPtr> host_queue_;
  std::condition_variable_any host_work_;
  std::condition_variable_any host_done_;
  bool stopping_ = false;
};

}  // namespace ferro::sim
