// A rank's connections to all other ranks of a communicator, and a thread that receives.
//
// The ranks are of one host: their sockets have abstract names, made of the communicator's name and
// the rank. Received messages are delivered at once, so a send never waits for an operation of the
// receiver. A rank that has ended is reported as lost. Thread-safe.
#pragma once

#include "sim/libraries/nccl/failure.h"
#include "sim/libraries/nccl/message.h"

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace ferro::sim::nccl {

using Deadline = std::chrono::steady_clock::time_point;

class Socket {
 public:
  explicit Socket(int file = -1) : file_(file) {}
  ~Socket();
  Socket(Socket&& other) noexcept : file_(other.file_) { other.file_ = -1; }
  Socket& operator=(Socket&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  int get() const { return file_; }

 private:
  int file_;
};

class Mesh {
 public:
  using Deliver = std::function<void(std::shared_ptr<const Message>)>;
  using Lose = std::function<void(int rank)>;

  // Waits until all ranks are connected, or until the deadline. Null with a failure. The receiving
  // thread calls the two functions, never after ~Mesh has returned.
  static std::unique_ptr<Mesh> connect(const std::string& name, int ranks, int rank,
                                       Deadline deadline, Deliver deliver, Lose lose,
                                       Failure& failure);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // A message to a lost rank is dropped without an error. `to` is another rank.
  void send(int to, const Message& message);
  // Makes the other ranks lose this rank.
  void disconnect();

 private:
  Mesh(std::vector<Socket> sockets, Deliver deliver, Lose lose);
  void receive();
  // False if the rank is lost.
  bool receive_from(int rank);

  std::vector<Socket> sockets_;  // by rank; none to itself
  std::vector<std::mutex> sending_;
  const Deliver deliver_;
  const Lose lose_;
  Socket stop_;
  std::thread receiver_;
};

}  // namespace ferro::sim::nccl
