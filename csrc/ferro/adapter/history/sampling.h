// Which requests have their stacks taken, where not all of them are worth the time.
#pragma once

#include <cstddef>

namespace ferro {

// By bytes, as heap profilers do: on average one request for each `mean` bytes of this thread, after
// distances that are random (exponentially distributed), so that no pattern of the program is always
// left out. A request of many times `mean` is practically always taken. 0: all are. Thread-safe.
bool is_sampled(std::size_t bytes, std::size_t mean);

}  // namespace ferro
