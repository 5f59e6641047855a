// The steps that a request climbs when no free block fits (types/ladder_steps.h has their names).
//
// The device's climb lock guards it: one request climbs at a time. But a callback of step 6 may
// climb again within it, so the state of a climb is only in its Climb.
//
// Cost: the steps up to the growth look at most at kMaxGivers other heaps. The later ones precede
// an error, and look at all that may help.
#pragma once

#include "ferro/core/device/device_parts.h"
#include "ferro/core/device/reclaimer.h"
#include "ferro/core/policy/repeated_moves.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace ferro {

// One request on the ladder.
struct Climb {
  Heap& heap;
  Request request;
  // The result of the last attempt to grow.
  GrowResult grown = GrowResult::kTooFewPages;

  bool is_rejected() const { return grown == GrowResult::kRejected; }
  bool lacks_addresses() const { return grown == GrowResult::kNoAddresses; }
};

class Ladder {
 public:
  Ladder(const DeviceParts& parts, Reclaimer& reclaimer) : parts_(parts), reclaimer_(reclaimer) {}

  // kNull if no step helped or the request is beyond the rejection limit.
  DevicePtr climb(Climb& climb);

 private:
  struct Step;
  // How often requests of one size were served by a move in one heap.
  struct MovedSize {
    const Heap* heap = nullptr;  // compared only
    std::size_t size = 0;
    std::uint32_t moves = 0;

    bool is_of(const Climb& climb) const {
      return heap == &climb.heap && size == climb.request.size;
    }
  };
  static const std::array<Step, 12> kSteps;
  // The first step that takes memory from another place.
  static constexpr std::size_t kFirstElsewhere = 1;
  // The most other heaps that give pages to a request that could grow instead.
  static constexpr std::size_t kMaxGivers = 16;
  // All other heaps.
  static constexpr std::size_t kAllGivers = ~std::size_t{0};

  // Steps. kNull if the step did not help.
  DevicePtr collect_pending_frees(Climb& climb);
  DevicePtr grow_instead_of_moving(Climb& climb);
  DevicePtr move_pages(Climb& climb);
  DevicePtr take_idle_pages(Climb& climb);
  DevicePtr take_passed_pages(Climb& climb);
  DevicePtr stream_wait_before_growth(Climb& climb);
  DevicePtr transfer_before_growth(Climb& climb);
  DevicePtr grow(Climb& climb);
  DevicePtr wait_on_stream(Climb& climb);
  DevicePtr transfer_pages(Climb& climb);
  DevicePtr reclaim(Climb& climb);
  DevicePtr wait_for_memory(Climb& climb);

  std::size_t release_of_own_stream(Climb& climb, const std::vector<Heap*>& givers,
                                    std::size_t wanted);
  DevicePtr allocate_grown(Climb& climb, GrowFrom from);
  // The same, and counts the pages that come from other heaps as transferred.
  DevicePtr allocate_transferred(Climb& climb, GrowFrom from);
  DevicePtr stream_wait_and_allocate(Climb& climb, std::size_t at_most);
  DevicePtr grow_from(const std::vector<Heap*>& givers, Climb& climb);
  DevicePtr transfer(Climb& climb, std::size_t max_givers);
  std::size_t pages_beyond_limits() const;
  std::size_t peak_live();
  // The count of moves of this heap and size. Another heap or size may have its place.
  MovedSize& moved_size(const Climb& climb);
  bool may_transfer();
  bool prefers_stream_wait_for(std::size_t pending, const Request& request);
  std::vector<Heap*> givers_for(const Climb& climb, std::size_t at_most);

  const DeviceParts& parts_;
  Reclaimer& reclaimer_;
  std::uint64_t handles_transferred_ = 0;  // instead of growing
  std::size_t peak_live_ = 0;              // as climbs have seen it
  std::array<MovedSize, 512> moved_sizes_{};
};

}  // namespace ferro
