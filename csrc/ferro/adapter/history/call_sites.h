// Which lines of the program hold live memory, of blocks that were allocated while a history with
// contexts was recorded.
#pragma once

#include "ferro/core/types/observer.h"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace ferro {

// Of live blocks, in bytes as they were handed out.
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

// Sum of all blocks = sum of `largest` + `others` + `unknown`. Empty where no line is known.
struct CallSites {
  std::vector<CallSite> largest;  // at most kLargest, the largest first
  std::size_t other_lines = 0;
  BlockTotal others;
  BlockTotal unknown;  // of no context, as those from before the recording began

  static constexpr std::size_t kLargest = 16;
};

// Adds blocks up. In two steps, because of locks. Not thread-safe.
class CallSiteSums {
 public:
  virtual ~CallSiteSums() = default;
  // Takes no lock: called under that of a heap. The context may be null.
  virtual void add(std::size_t bytes, const CallContext& context) = 0;
  // May take Python's lock, so none of the allocator's is held.
  virtual CallSites name() = 0;
};

// Who knows what contexts are says how; once, before anything fails. Until then it is null.
using MakeCallSiteSums = std::unique_ptr<CallSiteSums> (*)();
void set_call_site_sums(MakeCallSiteSums make);
std::unique_ptr<CallSiteSums> make_call_site_sums();

}  // namespace ferro
