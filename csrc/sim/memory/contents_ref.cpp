#include "sim/memory/contents_ref.h"

#include <cstring>
#include <memory>

namespace ferro::sim {
namespace {

struct HostBytes : ferro_sim_contents {
  std::unique_ptr<std::byte[]> held;
};

constexpr ferro_sim_contents_kind kHostBytes = {
    [](ferro_sim_contents* self) -> const void* {
      return static_cast<HostBytes*>(self)->held.get();
    },
    [](ferro_sim_contents* self) { delete static_cast<HostBytes*>(self); },
    nullptr,
};

}  // namespace

ContentsRef copy_bytes(const void* source, std::size_t bytes) {
  auto* const contents = new HostBytes;
  contents->kind = &kHostBytes;
  contents->references = 0;
  contents->origin = {0, FERRO_SIM_KNOWN, 0, 0, 0, 0};
  contents->held = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::memcpy(contents->held.get(), source, bytes);
  return ContentsRef(contents);
}

const std::byte* copied_bytes(const ContentsRef& contents) {
  return !contents.is_zeros() && contents.get()->kind == &kHostBytes ? contents.bytes() : nullptr;
}

}  // namespace ferro::sim
