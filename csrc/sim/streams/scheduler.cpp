#include "sim/streams/scheduler.h"

#include "sim/streams/durations.h"

#include <algorithm>

namespace ferro::sim {
namespace {

// The most operations that one turn runs. Several, so that a stream can get ahead of others.
constexpr std::uint64_t kMaxBurst = 4;
// The longest time that the thread which starts a host function waits for it. Short functions then
// leave a run reproducible and every order reachable. A function that needs a lock of the caller,
// or another operation, cannot make the thread hang.
constexpr std::chrono::milliseconds kHostWait{20};
// Clock time: the number of operations that fit into the launch queue of a driver.
constexpr std::size_t kLaunchQueue = 1024;

bool touches(const Work& work, HostRange memory) {
  const auto* copy = std::get_if<Copy>(&work);
  return copy != nullptr &&
         (copy->from - memory.base < memory.bytes || copy->to - memory.base < memory.bytes);
}

std::uint64_t threshold_of(double probability) {
  constexpr double kRange = 18446744073709551615.0;
  return probability >= 1.0 ? ~std::uint64_t{0} : static_cast<std::uint64_t>(probability * kRange);
}

Clock::time_point time_point_of(Nanoseconds virtual_time) {
  return Clock::time_point(std::chrono::nanoseconds(virtual_time));
}

}  // namespace

Scheduler::Scheduler(Perform perform, std::mutex& lock, const MachineConfig& config)
    : perform_(std::move(perform)),
      lock_(lock),
      config_(config),
      random_(config.seed),
      turn_threshold_(threshold_of(config.turn_probability)),
      busy_(static_cast<std::size_t>(config.devices)) {}

Scheduler::~Scheduler() {
  {
    std::unique_lock guard(lock_);
    host_done_.wait(guard, [this] { return threads_ == 0; });
  }
  if (worker_.joinable()) {
    {
      const std::lock_guard guard(lock_);
      stopping_ = true;
    }
    host_work_.notify_all();
    worker_.join();
  }
  // Operations that never ran own each other.
  for (auto& [id, operation] : pending_) {
    operation->before_.clear();
    operation->after_.clear();
  }
}

OperationPtr Scheduler::submit(Work work, int device, std::span<const OperationPtr> before) {
  if (eager()) {
    ++executed_;
    if (const HostCall* call = std::get_if<HostCall>(&work)) {
      call_host(*call);
    } else {
      perform_(work, device);
    }
    return nullptr;
  }
  while (pending_.size() >= config_.max_pending && !ready_.empty()) {
    run_one_ready();
  }
  auto operation = std::make_shared<Operation>();
  operation->id_ = next_id_++;
  operation->device_ = device;
  operation->work_ = std::move(work);
  operation->start_ = host_time_;
  for (const OperationPtr& earlier : before) {
    if (earlier != nullptr && !earlier->done()) {
      operation->before_.push_back(earlier);
      earlier->after_.push_back(operation);
      ++operation->unfinished_before_;
    }
  }
  pending_.emplace(operation->id_, operation);
  if (operation->unfinished_before_ == 0) {
    make_ready(operation);
  }
  return operation;
}

void Scheduler::make_ready(const OperationPtr& operation) {
  if (!timed() && std::holds_alternative<Point>(operation->work_)) {
    finish(operation);
    return;
  }
  if (!timed()) {
    operation->ready_index_ = ready_.size();
    ready_.push_back(operation);
    return;
  }
  const Nanoseconds duration = duration_of(*config_.card, operation->work_);
  operation->end_ = operation->start_ + duration;
  ends_.emplace(std::pair{operation->end_, operation->id_}, operation);
  if (!std::holds_alternative<HostCall>(operation->work_)) {
    Busy& busy = busy_[static_cast<std::size_t>(operation->device_)];
    busy.total +=
        std::max<Nanoseconds>(0, operation->end_ - std::max(operation->start_, busy.until));
    busy.until = std::max(busy.until, operation->end_);
  }
}

void Scheduler::prepare_submission() {
  if (!timed()) {
    return;
  }
  spend(config_.program_microseconds);
  take_turn();
  while (pending_.size() >= kLaunchQueue && !ends_.empty()) {
    run_next_end();
  }
}

void Scheduler::take_turn() {
  while (!ends_.empty() && ends_.begin()->first.first <= host_time_) {
    run_next_end();
  }
  if (ready_.empty() || random_() > turn_threshold_) {
    return;
  }
  const std::uint64_t burst = 1 + random_() % kMaxBurst;
  for (std::uint64_t i = 0; i < burst && !ready_.empty(); ++i) {
    run_one_ready();
  }
}

Clock::time_point Scheduler::now() const {
  return timed() ? time_point_of(host_time_) : Clock::now();
}

Nanoseconds Scheduler::busy_time(int device) const {
  const Busy& busy = busy_[static_cast<std::size_t>(device)];
  // Ready operations have started, so the device is busy from now to the last end.
  return busy.total - std::max<Nanoseconds>(0, busy.until - host_time_);
}

void Scheduler::run_one_ready() {
  const OperationPtr operation = ready_[random_() % ready_.size()];
  start(operation);
}

void Scheduler::run_next_end() {
  const OperationPtr operation = ends_.begin()->second;
  host_time_ = std::max(host_time_, operation->end_);
  start(operation);
}

void Scheduler::start(const OperationPtr& operation) {
  if (timed()) {
    ends_.erase({operation->end_, operation->id_});
  } else {
    OperationPtr last = ready_.back();
    ready_.pop_back();
    if (last != operation) {
      last->ready_index_ = operation->ready_index_;
      ready_[last->ready_index_] = std::move(last);
    }
  }
  operation->state_ = Operation::State::kRunning;
  if (std::holds_alternative<HostCall>(operation->work_)) {
    start_host(operation);
    operation->overran_ = !host_done_.wait_for(lock_, kHostWait, [&] { return operation->done(); });
    return;
  }
  perform_(operation->work_, operation->device_);
  finish(operation);
}

void Scheduler::finish(const OperationPtr& operation) {
  operation->state_ = Operation::State::kDone;
  // The host went on while an overrunning function ran, so the function ends no earlier than now.
  operation->end_ = operation->overran_ ? std::max(operation->end_, host_time_) : operation->end_;
  operation->finished_at_ = timed() ? time_point_of(operation->end_) : Clock::now();
  operation->work_ = Marker{};
  ++executed_;
  for (const OperationPtr& later : operation->after_) {
    later->start_ = std::max(later->start_, operation->end_);
    if (--later->unfinished_before_ == 0) {
      make_ready(later);
      const auto waiter = waiters_.find(later->wanted_by_);
      if (waiter != waiters_.end() && !later->done()) {
        waiter->second.push_back(later);
      }
    }
  }
  operation->after_.clear();
  operation->before_.clear();
  pending_.erase(operation->id_);
}

void Scheduler::call_host(const HostCall& call) {
  lock_.unlock();
  call.function(call.argument);
  lock_.lock();
}

void Scheduler::start_host(const OperationPtr& operation) {
  if (std::get<HostCall>(operation->work_).waits) {
    ++threads_;
    std::thread([this, operation] {
      const std::lock_guard guard(lock_);
      run_host(operation);
      --threads_;
      host_done_.notify_all();
    }).detach();
    return;
  }
  if (!worker_.joinable()) {
    worker_ = std::thread([this] { host_worker(); });
  }
  host_queue_.push_back(operation);
  host_work_.notify_one();
}

void Scheduler::run_host(const OperationPtr& operation) {
  call_host(std::get<HostCall>(operation->work_));
  finish(operation);
}

void Scheduler::host_worker() {
  const std::lock_guard guard(lock_);
  while (true) {
    host_work_.wait(lock_, [this] { return stopping_ || !host_queue_.empty(); });
    if (host_queue_.empty()) {
      return;
    }
    const OperationPtr operation = std::move(host_queue_.front());
    host_queue_.pop_front();
    run_host(operation);
    host_done_.notify_all();
  }
}

OperationPtr Scheduler::take_random(std::vector<OperationPtr>& operations) {
  const std::size_t index = random_() % operations.size();
  std::swap(operations[index], operations.back());
  OperationPtr taken = std::move(operations.back());
  operations.pop_back();
  return taken;
}

bool Scheduler::collect(std::span<const OperationPtr> wanted, std::uint64_t waiter,
                        std::vector<OperationPtr>& ready) {
  std::vector<OperationPtr> open;
  const auto visit = [&](const OperationPtr& operation) {
    if (operation != nullptr && !operation->done() && operation->wanted_by_ != waiter) {
      operation->wanted_by_ = waiter;
      open.push_back(operation);
    }
  };
  bool unfinished = false;
  for (const OperationPtr& operation : wanted) {
    unfinished = unfinished || (operation != nullptr && !operation->done());
    visit(operation);
  }
  while (!open.empty()) {
    const OperationPtr operation = std::move(open.back());
    open.pop_back();
    if (operation->state_ == Operation::State::kQueued && operation->unfinished_before_ == 0) {
      ready.push_back(operation);
    }
    for (const OperationPtr& earlier : operation->before_) {
      visit(earlier);
    }
  }
  return unfinished;
}

void Scheduler::run_until_done(std::span<const OperationPtr> wanted) {
  ++waiting_threads_;
  if (timed()) {
    run_timed_until_done(wanted);
  } else {
    run_in_any_order_until_done(wanted);
  }
  --waiting_threads_;
}

void Scheduler::run_timed_until_done(std::span<const OperationPtr> wanted) {
  for (const OperationPtr& operation : wanted) {
    while (operation != nullptr && !operation->done()) {
      if (ends_.empty()) {
        host_done_.wait(lock_);
      } else {
        run_next_end();
      }
    }
  }
}

void Scheduler::run_in_any_order_until_done(std::span<const OperationPtr> wanted) {
  // Another waiter may claim or run a shared operation, so an exhausted list is collected again
  // under a new mark.
  while (true) {
    const std::uint64_t waiter = next_waiter_++;
    std::vector<OperationPtr> ready;
    if (!collect(wanted, waiter, ready)) {
      return;
    }
    if (ready.empty()) {
      host_done_.wait(lock_);
      continue;
    }
    waiters_.emplace(waiter, std::move(ready));
    while (!waiters_.at(waiter).empty()) {
      const OperationPtr operation = take_random(waiters_.at(waiter));
      if (operation->state_ == Operation::State::kQueued) {
        start(operation);
      }
    }
    waiters_.erase(waiter);
  }
}

void Scheduler::run_device(int device, HostRange memory) {
  std::vector<OperationPtr> wanted;
  for (const auto& [id, operation] : pending_) {
    if (operation->device_ == device || touches(operation->work_, memory)) {
      wanted.push_back(operation);
    }
  }
  // The order of the hash table varies between systems, but a seed must mean the same run.
  std::sort(wanted.begin(), wanted.end(),
            [](const OperationPtr& a, const OperationPtr& b) { return a->id_ < b->id_; });
  run_until_done(wanted);
}

void Scheduler::run_all() {
  std::vector<OperationPtr> wanted;
  for (const auto& [id, operation] : pending_) {
    wanted.push_back(operation);
  }
  std::sort(wanted.begin(), wanted.end(),
            [](const OperationPtr& a, const OperationPtr& b) { return a->id_ < b->id_; });
  run_until_done(wanted);
}

}  // namespace ferro::sim
