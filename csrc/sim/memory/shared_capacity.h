// The capacity of the cards where several processes share them: what each process holds of each
// device, in a memory file that all of them map.
//
// A process that creates the file passes its path on; a process that opens it joins. Whoever is gone
// holds nothing: each process keeps a lock on its entry, which the kernel releases with it, so that
// no number of a process is ever taken for that of another. Not thread-safe; the machine's lock
// guards it. Between processes every call is one step, under a lock on the file. The processes trust
// each other to be the same build.
// Invariant: the sum over processes of what `take` gave <= the capacity; `add` may exceed it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace ferro::sim {

class SharedCapacity {
 public:
  struct Holder {
    int process;
    std::size_t bytes;
  };

  // Null without a memory file.
  static std::unique_ptr<SharedCapacity> create();
  // Null where the path leads to no such file, as when its process is gone, or 1,024 processes have
  // joined.
  static std::unique_ptr<SharedCapacity> open(const std::string& path);
  // Gives back what this process holds.
  ~SharedCapacity();
  SharedCapacity(const SharedCapacity&) = delete;
  SharedCapacity& operator=(const SharedCapacity&) = delete;

  // Where another process can open it as long as this one lives.
  std::string path() const;
  // False, with nothing changed, when all processes together would hold more than `capacity`.
  bool take(int device, std::size_t bytes, std::size_t capacity);
  void add(int device, std::size_t bytes);
  void give_back(int device, std::size_t bytes);

  // Bytes that all processes hold now, and the most that they ever held together.
  std::size_t allocated(int device);
  std::size_t peak(int device) const;
  // The processes that hold anything of the device.
  std::vector<Holder> holders(int device);

 private:
  struct File;
  class Locked;

  SharedCapacity(int descriptor, File* file) : descriptor_(descriptor), file_(file) {}
  static std::unique_ptr<SharedCapacity> join(int descriptor);
  // Clears the entries of processes that are gone.
  void forget_gone();
  std::size_t sum(int device) const;
  void change(int device, std::size_t bytes);

  const int descriptor_;
  File* const file_;
  std::size_t entry_ = 0;  // this process's
};

}  // namespace ferro::sim
