// The program's lines that hold live memory, allocated while a history recorded contexts.
#pragma once

#include "ferro/core/types/observer.h"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace ferro {

// Sums over live blocks. `bytes` are their sizes as handed out.
struct BlockTotal {
  std::size_t bytes = 0;
  std::size_t blocks = 0;

  void add(const BlockTotal& more) {
    bytes += more.bytes;
    blocks += more.blocks;
  }
};

struct CallSite {
  std::string line;  // as in `train.py:12 forward`
  BlockTotal total;
};

// Sum of all blocks = sum of `largest` + `others` + `unknown`. Empty if no line is known.
struct CallSites {
  std::vector<CallSite> largest;  // at most kLargest, the largest first
  std::size_t other_lines = 0;
  BlockTotal others;
  BlockTotal unknown;  // without a context, such as blocks from before the recording began

  static constexpr std::size_t kLargest = 16;
};

// Sums blocks by line, in two steps because of locks. Not thread-safe.
class CallSiteSums {
 public:
  virtual ~CallSiteSums() = default;
  // Called under the lock of a heap, so it takes no lock. The context may be null.
  virtual void add(std::size_t bytes, const CallContext& context) = 0;
  // May take the GIL, so the caller holds no lock of the allocator.
  virtual CallSites name() = 0;
};

// The Python module, which can read contexts, sets the factory once, before the first failure.
// Until then the result is null.
using MakeCallSiteSums = std::unique_ptr<CallSiteSums> (*)();
void set_call_site_sums(MakeCallSiteSums make);
std::unique_ptr<CallSiteSums> make_call_site_sums();

}  // namespace ferro
