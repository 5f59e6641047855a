// A rank of a communicator: its connections to the other ranks, the messages received from them,
// its error.
//
// Thread-safe. The first failure stays: all later calls fail with it.
#pragma once

#include "sim/libraries/nccl/mesh.h"
#include "sim/libraries/nccl/reduction.h"

#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <optional>

namespace ferro::sim::nccl {

// The longest time that a rank waits for others: FERRO_SIM_NCCL_TIMEOUT seconds, by default
// PyTorch's 600.
std::chrono::seconds wait_limit();

// The text of ncclGetLastError, for all communicators.
void keep_last_error(const std::string& text);
const char* last_error();

class Communicator {
 public:
  struct Device {
    CUcontext context = nullptr;
    int index = 0;
  };
  // The device of the thread's current context, or the first device.
  static Device current_device();

  // Waits for the other ranks; null with a failure.
  static std::shared_ptr<Communicator> create(const std::string& name, int ranks, int rank,
                                              Device device, Failure& failure);
  // A communicator of the ranks that pass the same color, ordered by key. All ranks must call it.
  // Null without a failure for a negative color.
  std::shared_ptr<Communicator> split(int color, int key, Failure& failure);
  // A communicator of the ranks that are not `excluded`. All of these must call it.
  std::shared_ptr<Communicator> shrink(const std::vector<int>& excluded, Failure& failure);

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  const Device& device() const { return device_; }

  // The next operation's number. Operations between two ranks have numbers of their own, for each
  // direction.
  std::uint64_t next_collective() { return collectives_++; }
  std::uint64_t next_send(int to) { return sends_[static_cast<std::size_t>(to)]++; }
  std::uint64_t next_receive(int from) { return receives_[static_cast<std::size_t>(from)]++; }

  void send(int to, const std::shared_ptr<const Message>& message);
  // Waits for a message. Null, with the failure set, if it does not arrive or has other terms.
  std::shared_ptr<const Message> take(const Place& place, const Terms& terms);

  void fail(Failure failure);
  Failure failure() const;
  // Makes all waits fail, here and at the other ranks.
  void abort();

  // Reductions that scale a rank's input; their numbers start at ncclNumOps.
  int add_scaling(const Scaling& scaling);
  bool remove_scaling(int reduction);
  // None for an unknown reduction.
  std::optional<Scaling> find_scaling(int reduction) const;

 private:
  Communicator(std::string name, int ranks, int rank, Device device);
  std::string child_name(const std::string& what) const;

  const std::string name_;
  const int ranks_;
  const int rank_;
  const Device device_;
  std::atomic<std::uint64_t> collectives_{0};
  std::atomic<std::uint64_t> splits_{0};
  std::vector<std::atomic<std::uint64_t>> sends_;
  std::vector<std::atomic<std::uint64_t>> receives_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Place, std::shared_ptr<const Message>> inbox_;
  std::vector<bool> lost_;
  Failure failure_;
  std::map<int, Scaling> scalings_;
  int next_scaling_ = ncclNumOps;
  // The last member, destroyed first: its thread uses the other members.
  std::unique_ptr<Mesh> mesh_;
};

}  // namespace ferro::sim::nccl
