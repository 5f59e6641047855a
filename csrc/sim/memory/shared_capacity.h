// The bytes that each process holds of each device that several processes share, in a memory file
// that all of them map.
//
// The process that creates the file passes its path to others, which open it. A process that has
// ended holds no bytes: each process keeps a lock on its entry, which the kernel releases when the
// process ends. A reused process id is therefore harmless. Not thread-safe; the machine's lock
// guards it. Between processes every call is atomic, under a lock on the file. All processes must
// be of the same build. Invariant: the sum of `take` over all processes <= the capacity; `add` may
// exceed it.
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
  // Null if the file does not exist (its process may have ended), or if 1,024 processes have
  // joined.
  static std::unique_ptr<SharedCapacity> open(const std::string& path);
  // Releases all bytes of this process.
  ~SharedCapacity();
  SharedCapacity(const SharedCapacity&) = delete;
  SharedCapacity& operator=(const SharedCapacity&) = delete;

  // The path by which another process can open the file until this one ends.
  std::string path() const;
  // False, with nothing changed, if all processes together would hold more than `capacity`.
  bool take(int device, std::size_t bytes, std::size_t capacity);
  void add(int device, std::size_t bytes);
  void give_back(int device, std::size_t bytes);

  // The bytes that all processes hold together now, and their maximum.
  std::size_t allocated(int device);
  std::size_t peak(int device) const;
  // The processes that hold bytes of the device.
  std::vector<Holder> holders(int device);

 private:
  struct File;
  class Locked;

  SharedCapacity(int descriptor, File* file) : descriptor_(descriptor), file_(file) {}
  static std::unique_ptr<SharedCapacity> join(int descriptor);
  // Clears the entries of ended processes.
  void clear_ended();
  std::size_t sum(int device) const;
  void change(int device, std::size_t bytes);

  const int descriptor_;
  File* const file_;
  std::size_t entry_ = 0;  // this process's
};

}  // namespace ferro::sim
