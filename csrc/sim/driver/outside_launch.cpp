#include "sim/driver/outside_launch.h"

#include "sim/machine/outside_kernel.h"

#include <atomic>
#include <memory>
#include <utility>

namespace ferro::sim {
namespace {

std::atomic<const ferro_sim_outside_observer*> current_observer = nullptr;

}  // namespace

void set_outside_observer(const ferro_sim_outside_observer* observer) {
  current_observer = observer;
  set_block_finder(observer == nullptr ? nullptr : observer->find_block);
}

OutsideLaunch::OutsideLaunch()
    : thread_(*Machine::counts()), observer_(is_outside() ? current_observer.load() : nullptr) {
  if (observer_ != nullptr) {
    observer_->prepare();
  }
}

OutsideLaunch::~OutsideLaunch() {
  if (observer_ != nullptr && !fresh_.empty()) {
    observer_->add_kernel(fresh_.c_str());
  }
}

void OutsideLaunch::record(Machine& machine, CUfunction kernel) {
  const Function* const known = machine.modules().find_function(kernel);
  const std::string& name = known == nullptr ? kUnnamedKernel : known->name;
  if (machine.note_kernel(name)) {
    fresh_ = name;
  }
}

void OutsideLaunch::forget(Machine& machine, CUfunction kernel, CUstream handle, GraphNode* node,
                           void* const* arguments, void* const* extra) const {
  if (observer_ == nullptr) {
    return;
  }
  const KernelReach reach = reach_of(machine, machine.modules().find_function(kernel), arguments,
                                     extra, thread_.noting > 0);
  if (reach.written.empty() && reach.read.empty() && !reach.everything) {
    return;
  }
  if (node == nullptr) {
    submit(machine.scheduler(), *machine.find_stream(handle),
           ForgetReach{std::make_shared<const KernelReach>(reach)});
    return;
  }
  std::vector<UnknownBytes> forgotten = forget_reach(machine, reach);
  if (!forgotten.empty()) {
    node->unknown = std::make_shared<std::vector<UnknownBytes>>(std::move(forgotten));
  }
}

std::uint64_t OutsideRead::reads(ferro_sim_certainty least) const {
  return std::atomic_ref(thread_.reads[least]).load(std::memory_order_relaxed);
}

OutsideRead::OutsideRead(std::size_t bytes)
    : thread_(*Machine::counts()),
      observer_(thread_.operators == 0 && bytes <= kMaxReadBytes ? current_observer.load()
                                                                 : nullptr),
      unknown_(reads(FERRO_SIM_UNKNOWN)),
      drawn_(reads(FERRO_SIM_DRAWN)) {}

OutsideRead::~OutsideRead() {
  if (observer_ == nullptr) {
    return;
  }
  if (reads(FERRO_SIM_UNKNOWN) != unknown_) {
    observer_->add_read(FERRO_SIM_UNKNOWN);
  } else if (reads(FERRO_SIM_DRAWN) != drawn_) {
    observer_->add_read(FERRO_SIM_DRAWN);
  }
}

}  // namespace ferro::sim
