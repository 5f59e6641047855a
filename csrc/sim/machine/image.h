// Which code of an image a card runs, and whether there is any.
//
// An image is what programs give the driver to load: a fat binary (with or without its wrapper), a
// cubin, or the text of PTX. A card of capability X.y runs binaries of X.z with z <= y, of which the
// nearest is taken. Binaries of an architecture's own features (sm_90a) run on that capability
// alone, those of a family's (sm_100f) within its major version. Failing a binary the driver
// compiles the nearest PTX that is not newer than the card. Pure functions; of the code nothing is
// read but the parameters of kernels (cubin.h).
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

// A cubin inside of an image, compressed or not.
struct Cubin {
  const std::byte* at = nullptr;
  std::size_t bytes = 0;  // 0: as many as its own headers say
};

// None when no code of the image runs on a card of `capability`. An image of another kind counts as
// made for the card.
std::optional<ImageVersions> choose_code(const void* image, int capability);
// The binary that a card of `capability` runs; none for PTX and images of other kinds.
std::optional<Cubin> find_cubin(const void* image, int capability);
// As nvcc's output registers it: then it is there as long as the program.
bool is_registered(const void* image);

}  // namespace ferro::sim
