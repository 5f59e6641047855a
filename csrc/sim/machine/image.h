// Selects the code of an image that a card runs, if there is any.
//
// Programs load images with the driver: a fat binary (with or without its wrapper), a cubin, or PTX
// text. A card of capability X.y runs binaries of X.z with z <= y, and uses the nearest.
// Architecture-specific binaries (sm_90a) run only on that capability, family-specific ones
// (sm_100f) within its major version. Without such a binary the driver compiles the nearest PTX
// that is not newer than the card. Pure functions. Of the code, only the parameters of kernels are
// read (cubin.h).
#pragma once

#include <cstddef>
#include <optional>

namespace ferro::sim {

// Both as the driver reports them: 10 * major + minor.
struct ImageVersions {
  int binary = 0;
  // Of the PTX that the binary came from.
  int ptx = 0;
  bool operator==(const ImageVersions&) const = default;
};

// A cubin or PTX inside of an image, compressed or not.
struct Code {
  const std::byte* at = nullptr;
  std::size_t bytes = 0;  // 0 for a cubin: see its headers
};

// None when no code of the image runs on a card of `capability`. An image of another kind counts as
// built for the card.
std::optional<ImageVersions> choose_code(const void* image, int capability);
// The binary that a card of `capability` runs, or the PTX that it compiles; none for images of other
// kinds.
std::optional<Code> find_code(const void* image, int capability);
// Whether the image is one that nvcc's output registers; such an image stays valid as long as the
// program.
bool is_registered(const void* image);

}  // namespace ferro::sim
