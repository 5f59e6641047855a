// Chooses the requests whose stacks are gathered, because gathering all of them is slow.
#pragma once

#include <cstddef>

namespace ferro {

// Samples by bytes, as heap profilers do: on average one request per `mean` bytes of this thread,
// at random (exponentially distributed) distances, so that no pattern of the program is always
// missed. A request of many times `mean` is practically always sampled. 0 samples all. Thread-safe.
bool is_sampled(std::size_t bytes, std::size_t mean);

}  // namespace ferro
