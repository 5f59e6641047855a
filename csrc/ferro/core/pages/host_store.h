// Host memory that keeps the contents of device memory that is asleep (device/sleeper.h).
//
// It comes in segments of anonymous memory: with huge pages where the system has them, touched by
// several threads, and page-locked where the system allows it. A forked child does not inherit it:
// copying locked pages takes seconds. Segments stay until `trim`, so that the next sleep finds them
// ready.
//
// Not thread-safe: under the climb lock of the device. Invariant: held_bytes() == used bytes + free
// bytes of all segments.
#pragma once

#include "ferro/driver/driver.h"

#include <cstddef>
#include <future>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace ferro {

class HostStore {
 public:
  // A part of one segment.
  struct Piece {
    std::byte* begin = nullptr;
    std::size_t bytes = 0;
  };

  explicit HostStore(Driver& driver) : driver_(driver) {}
  // Nothing is taken.
  ~HostStore() { trim(); }
  HostStore(const HostStore&) = delete;
  HostStore& operator=(const HostStore&) = delete;

  // Appends pieces of `bytes` in all. A new segment also has room for up to `more` bytes that are
  // taken next. False: the host has too little memory; nothing is appended.
  bool take(std::size_t bytes, std::size_t more, std::vector<Piece>& out);
  void put(std::span<const Piece> pieces);
  // Releases segments that are not in use. Returns their bytes.
  std::size_t trim();

  std::size_t held_bytes() const { return held_bytes_; }
  std::size_t locked_bytes() const { return locked_bytes_; }
  std::size_t used_bytes() const { return used_bytes_; }

 private:
  // Large enough that its calls cost nothing beside its copies, small enough that the copies of one
  // run while the next is made.
  static constexpr std::size_t kLargestSegment = std::size_t{1} << 30;

  struct Segment {
    std::byte* begin = nullptr;
    std::size_t bytes = 0;
    bool is_locked = false;
    std::map<std::size_t, std::size_t> free;  // bytes by offset; no two are adjacent
  };

  // Maps and touches memory. None: the host lacks it. Thread-safe.
  static std::optional<Segment> make_segment(std::size_t bytes);
  bool add_segment(std::size_t bytes, std::size_t more);
  void release(Segment& segment);

  Driver& driver_;
  std::vector<Segment> segments_;
  std::future<std::optional<Segment>> next_;  // is made while the last one is locked and filled
  std::size_t held_bytes_ = 0;
  std::size_t locked_bytes_ = 0;
  std::size_t used_bytes_ = 0;
};

// Bytes that the process may still use, by the system and its control group; a recent value. None
// if neither tells.
std::optional<std::size_t> available_host_bytes();

}  // namespace ferro
