#include "sim/libraries/nccl/communicator.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ferro::sim::nccl {
namespace {

struct LastError {
  std::mutex mutex;
  std::string text;
};

// Never destroyed: static destructors of other libraries may read it.
LastError& the_last_error() {
  static LastError* const instance = new LastError;
  return *instance;
}

// Names a communicator derived from another: 64-bit FNV-1a.
std::string hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(hash));
  return digits;
}

}  // namespace

std::chrono::seconds wait_limit() {
  const char* text = std::getenv("FERRO_SIM_NCCL_TIMEOUT");
  const long seconds = text == nullptr ? 0 : std::strtol(text, nullptr, 10);
  return std::chrono::seconds(seconds > 0 ? seconds : 600);
}

void keep_last_error(const std::string& text) {
  LastError& last = the_last_error();
  const std::lock_guard guard(last.mutex);
  last.text = text;
}

const char* last_error() {
  thread_local std::string copy;
  LastError& last = the_last_error();
  const std::lock_guard guard(last.mutex);
  copy = last.text;
  return copy.c_str();
}

Communicator::Device Communicator::current_device() {
  Device device;
  if (cuCtxGetCurrent(&device.context) != CUDA_SUCCESS || device.context == nullptr) {
    cuInit(0);
    cuDevicePrimaryCtxRetain(&device.context, 0);
    cuCtxSetCurrent(device.context);
  }
  cuCtxGetDevice(&device.index);
  return device;
}

Communicator::Communicator(std::string name, int ranks, int rank, Device device)
    : name_(std::move(name)),
      ranks_(ranks),
      rank_(rank),
      device_(device),
      sends_(static_cast<std::size_t>(ranks)),
      receives_(static_cast<std::size_t>(ranks)),
      lost_(static_cast<std::size_t>(ranks)) {}

std::shared_ptr<Communicator> Communicator::create(const std::string& name, int ranks, int rank,
                                                   Device device, Failure& failure) {
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    failure = {ncclInvalidArgument,
               "there is no rank " + std::to_string(rank) + " of " + std::to_string(ranks)};
    return nullptr;
  }
  std::shared_ptr<Communicator> made(new Communicator(name, ranks, rank, device));
  Communicator* const to = made.get();
  const auto deliver = [to](std::shared_ptr<const Message> message) {
    const std::lock_guard guard(to->mutex_);
    to->inbox_.emplace(message->place, std::move(message));
    to->changed_.notify_all();
  };
  const auto lose = [to](int lost) {
    const std::lock_guard guard(to->mutex_);
    to->lost_[static_cast<std::size_t>(lost)] = true;
    to->changed_.notify_all();
  };
  made->mesh_ = Mesh::connect(name, ranks, rank, std::chrono::steady_clock::now() + wait_limit(),
                              deliver, lose, failure);
  return made->mesh_ != nullptr ? made : nullptr;
}

std::string Communicator::child_name(const std::string& what) const {
  const std::string text = name_ + "/" + what;
  return hash_of(text) + hash_of("again " + text);
}

std::shared_ptr<Communicator> Communicator::split(int color, int key, Failure& failure) {
  struct Choice {
    int color, key, rank;
  };
  const std::uint64_t sequence = splits_++;
  const Terms terms{.call = Call::kSplit};
  const Choice own{color, key, rank_};
  auto message = std::make_shared<Message>();
  message->place = {rank_, Place::kSplitting, sequence, 0};
  message->terms = terms;
  message->bytes.resize(sizeof own);
  std::memcpy(message->bytes.data(), &own, sizeof own);
  for (int to = 0; to < ranks_; ++to) {
    send(to, message);
  }
  std::vector<Choice> members;
  for (int from = 0; from < ranks_; ++from) {
    const auto answer = take({from, Place::kSplitting, sequence, 0}, terms);
    if (answer == nullptr) {
      failure = this->failure();
      return nullptr;
    }
    Choice choice;
    std::memcpy(&choice, answer->bytes.data(), sizeof choice);
    if (choice.color == color) {
      members.push_back(choice);
    }
  }
  if (color < 0) {
    return nullptr;
  }
  std::stable_sort(members.begin(), members.end(),
                   [](const Choice& a, const Choice& b) { return a.key < b.key; });
  const auto self = std::find_if(members.begin(), members.end(),
                                 [&](const Choice& choice) { return choice.rank == rank_; });
  return create(child_name("split " + std::to_string(sequence) + " " + std::to_string(color)),
                static_cast<int>(members.size()), static_cast<int>(self - members.begin()), device_,
                failure);
}

std::shared_ptr<Communicator> Communicator::shrink(const std::vector<int>& excluded,
                                                   Failure& failure) {
  std::string what = "shrink " + std::to_string(splits_++);
  int ranks = 0;
  int rank = -1;
  for (int i = 0; i < ranks_; ++i) {
    if (std::find(excluded.begin(), excluded.end(), i) == excluded.end()) {
      rank = i == rank_ ? ranks : rank;
      what += " " + std::to_string(i);
      ++ranks;
    }
  }
  return create(child_name(what), ranks, rank, device_, failure);
}

void Communicator::send(int to, const std::shared_ptr<const Message>& message) {
  if (to != rank_) {
    mesh_->send(to, *message);
    return;
  }
  const std::lock_guard guard(mutex_);
  inbox_.emplace(message->place, message);
  changed_.notify_all();
}

std::shared_ptr<const Message> Communicator::take(const Place& place, const Terms& terms) {
  const auto from = static_cast<std::size_t>(place.from);
  const auto seconds = wait_limit();
  std::unique_lock lock(mutex_);
  auto found = inbox_.end();
  const bool in_time = changed_.wait_for(lock, seconds, [&] {
    found = inbox_.find(place);
    return found != inbox_.end() || lost_[from] || failure_;
  });
  const std::string peer = "rank " + std::to_string(place.from);
  const std::string self = "rank " + std::to_string(rank_) + " of " + std::to_string(ranks_);
  Failure failure;
  if (found != inbox_.end()) {
    auto message = inbox_.extract(found).mapped();
    if (message->terms == terms) {
      return message;
    }
    failure = {ncclInvalidUsage, self + " is in " + to_string(terms) + " and " + peer + " in " +
                                     to_string(message->terms) +
                                     ": all ranks must call the same operations in the same order"};
  } else if (!in_time) {
    failure = {ncclSystemError,
               self + " waited " + std::to_string(seconds.count()) + " s in " + to_string(terms) +
                   " for " + peer +
                   ", which did not arrive (FERRO_SIM_NCCL_TIMEOUT sets the seconds)"};
  } else {
    failure = {ncclRemoteError,
               peer + " has ended, and " + self + " waits for it in " + to_string(terms)};
  }
  lock.unlock();
  fail(std::move(failure));
  return nullptr;
}

void Communicator::fail(Failure failure) {
  const std::lock_guard guard(mutex_);
  if (!failure_) {
    failure_ = std::move(failure);
    keep_last_error(failure_.text);
    changed_.notify_all();
  }
}

Failure Communicator::failure() const {
  const std::lock_guard guard(mutex_);
  return failure_;
}

void Communicator::abort() {
  fail({ncclInternalError, "the communicator was aborted"});
  mesh_->disconnect();
}

int Communicator::add_scaling(const Scaling& scaling) {
  const std::lock_guard guard(mutex_);
  scalings_.emplace(next_scaling_, scaling);
  return next_scaling_++;
}

bool Communicator::remove_scaling(int reduction) {
  const std::lock_guard guard(mutex_);
  return scalings_.erase(reduction) == 1;
}

std::optional<Scaling> Communicator::find_scaling(int reduction) const {
  const std::lock_guard guard(mutex_);
  const auto found = scalings_.find(reduction);
  return found != scalings_.end() ? std::optional(found->second) : std::nullopt;
}

}  // namespace ferro::sim::nccl
