// In the place of the allocator's thread that removes old mappings: requests leave them to it, and the
// test calls `StaleMappings::unmap_next` when it likes.
#pragma once

#include "ferro/core/pages/stale_mappings.h"

namespace ferro::testing {

class IdleRemover final : public StaleMappings::Remover {
 public:
  void on_added() noexcept override {}
};

}  // namespace ferro::testing
