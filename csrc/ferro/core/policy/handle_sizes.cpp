#include "ferro/core/policy/handle_sizes.h"

#include <algorithm>
#include <bit>

namespace ferro {

std::vector<std::size_t> plan_handles(const NewPages& pages, const HandleRules& rules,
                                      std::size_t page_bytes) {
  const std::size_t of_request =
      std::max(rules.small_bytes / page_bytes, pages.wanted / rules.of_request);
  const std::size_t largest =
      std::max(std::min({rules.max_bytes / page_bytes, of_request, pages.room / rules.of_room,
                         (pages.held + pages.wanted) / rules.of_held}),
               std::size_t{1});
  std::vector<std::size_t> handles;
  for (std::size_t left = pages.wanted; left != 0; left -= handles.back()) {
    handles.push_back(std::bit_floor(std::min(left, largest)));
  }
  return handles;
}

}  // namespace ferro
