// The settings of the installed allocator: those of the core, and which allocator serves a request.
#pragma once

#include "ferro/core/device/config.h"

#include <cstdint>

namespace ferro {

// The allocator that serves a request.
enum class Layout : std::uint8_t {
  kPages,     // this one
  kSegments,  // PyTorch's own; also on devices without virtual memory management
};

struct Settings : AllocatorConfig {
  Layout layout = Layout::kPages;        // of all requests
  Layout graph_layout = Layout::kPages;  // of requests to pools of captures
};

}  // namespace ferro
