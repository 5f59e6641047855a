#include "sim/machine/image.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace ferro::sim {
namespace {

constexpr std::uint32_t kWrapperMagic = 0x466243b1;
constexpr std::uint32_t kFatMagic = 0xba55ed50;

// The structure that nvcc's output registers.
struct Wrapper {
  std::uint32_t magic;
  std::uint32_t version;
  const void* image;
  const void* file;
};

struct FatHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t bytes;  // of the entries
};

// Before each piece of code, compressed or not.
struct FatEntry {
  std::uint16_t kind;
  std::uint16_t attributes;
  std::uint32_t header_bytes;
  std::uint64_t bytes;
  std::uint32_t compressed_bytes;
  std::uint32_t options;
  std::uint16_t minor;
  std::uint16_t major;
  std::uint32_t capability;
  std::uint32_t name;
  std::uint32_t name_bytes;
  std::uint64_t flags;
};

constexpr std::uint16_t kPtx = 1;
constexpr std::uint16_t kBinary = 2;
constexpr std::uint64_t kOfOneArchitecture = 1 << 20;
constexpr std::uint64_t kOfOneFamily = 1 << 21;

// Headers need not be aligned.
template <typename T>
T read(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

bool runs(int binary, std::uint64_t flags, int capability) {
  const bool exact = (flags & kOfOneArchitecture) != 0 && (flags & kOfOneFamily) == 0;
  return exact ? binary == capability
               : binary / 10 == capability / 10 && binary % 10 <= capability % 10;
}

bool compiles(int ptx, std::uint64_t flags, int capability) {
  return (flags & (kOfOneArchitecture | kOfOneFamily)) != 0 ? runs(ptx, flags, capability)
                                                            : ptx <= capability;
}

struct FatChoice {
  int binary = 0;
  int ptx = 0;
  Code of_binary;
  Code of_ptx;
};

FatChoice choose_of_fat_binary(const std::byte* image, int capability) {
  const auto header = read<FatHeader>(image);
  FatChoice choice;
  auto& [binary, ptx, of_binary, of_ptx] = choice;
  const std::byte* at = image + header.header_bytes;
  const std::byte* const end = at + header.bytes;
  while (at + sizeof(FatEntry) <= end) {
    const auto entry = read<FatEntry>(at);
    const int version = static_cast<int>(entry.capability);
    const Code code = {at + entry.header_bytes,
                       entry.compressed_bytes != 0 ? entry.compressed_bytes : entry.bytes};
    if (entry.kind == kBinary && version > binary && runs(version, entry.flags, capability)) {
      binary = version;
      of_binary = code;
    }
    if (entry.kind == kPtx && version > ptx && compiles(version, entry.flags, capability)) {
      ptx = version;
      of_ptx = code;
    }
    at += entry.header_bytes + entry.bytes;
  }
  return choice;
}

std::optional<ImageVersions> versions_of(const FatChoice& choice, int capability) {
  if (choice.binary != 0) {
    return ImageVersions{choice.binary, choice.binary};
  }
  return choice.ptx != 0 ? std::optional(ImageVersions{capability, choice.ptx}) : std::nullopt;
}

std::optional<ImageVersions> choose_cubin(const std::byte* image, int capability) {
  constexpr std::size_t kAbiVersionAt = 8;
  constexpr std::size_t kFlagsAt = 48;
  const auto flags = read<std::uint32_t>(image + kFlagsAt);
  // The second layout moved the number from the lowest byte to the next.
  const bool second = read<std::uint8_t>(image + kAbiVersionAt) >= 8;
  const int version = static_cast<int>((second ? flags >> 8 : flags) & 0xff);
  // The flag of architecture-specific code is not checked.
  return version == 0 || runs(version, 0, capability)
             ? std::optional(ImageVersions{version == 0 ? capability : version,
                                           version == 0 ? capability : version})
             : std::nullopt;
}

std::optional<ImageVersions> choose_ptx(std::string_view text, int capability) {
  constexpr std::string_view kTarget = ".target sm_";
  const std::size_t found = text.find(kTarget);
  if (found == std::string_view::npos) {
    return ImageVersions{capability, capability};
  }
  char* end = nullptr;
  const int version = static_cast<int>(std::strtol(text.data() + found + kTarget.size(), &end, 10));
  const std::uint64_t flags = *end == 'a' ? kOfOneArchitecture : *end == 'f' ? kOfOneFamily : 0;
  return compiles(version, flags, capability) ? std::optional(ImageVersions{capability, version})
                                              : std::nullopt;
}

// An image may be a short text, so further bytes are read only if the first matches.
template <typename Magic>
bool begins_with(const void* at, const Magic& magic) {
  return std::memcmp(at, &magic, 1) == 0 && std::memcmp(at, &magic, sizeof magic) == 0;
}

constexpr char kElf[] = {0x7f, 'E', 'L', 'F'};

bool is_text(const std::byte* image) {
  const auto first = read<char>(image);
  return first == '.' || first == '/' || first == '\n';
}

const std::byte* unwrapped(const void* image) {
  return static_cast<const std::byte*>(is_registered(image) ? read<Wrapper>(image).image : image);
}

}  // namespace

bool is_registered(const void* image) {
  return image != nullptr && begins_with(image, kWrapperMagic);
}

std::optional<Code> find_code(const void* image, int capability) {
  if (image == nullptr) {
    return std::nullopt;
  }
  const std::byte* at = unwrapped(image);
  if (begins_with(at, kFatMagic)) {
    const FatChoice choice = choose_of_fat_binary(at, capability);
    return choice.binary != 0 ? std::optional(choice.of_binary)
           : choice.ptx != 0  ? std::optional(choice.of_ptx)
                              : std::nullopt;
  }
  if (begins_with(at, kElf)) {
    return Code{at};
  }
  return is_text(at) ? std::optional(Code{at, std::strlen(reinterpret_cast<const char*>(at))})
                     : std::nullopt;
}

std::optional<ImageVersions> choose_code(const void* image, int capability) {
  if (image == nullptr) {
    return ImageVersions{capability, capability};
  }
  const std::byte* at = unwrapped(image);
  if (begins_with(at, kFatMagic)) {
    return versions_of(choose_of_fat_binary(at, capability), capability);
  }
  if (begins_with(at, kElf)) {
    return choose_cubin(at, capability);
  }
  if (!is_text(at)) {
    return ImageVersions{capability, capability};
  }
  return choose_ptx(reinterpret_cast<const char*>(at), capability);
}

}  // namespace ferro::sim
