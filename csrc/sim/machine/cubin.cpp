#include "sim/machine/cubin.h"

#include "sim/machine/ptx.h"

#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <optional>
#include <string_view>
#include <utility>

namespace ferro::sim {
namespace {

template <typename T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Functions of libzstd's public interface, whose headers need not be installed.
struct Zstd {
  using ContentSize = unsigned long long (*)(const void*, std::size_t);
  using Decompress = std::size_t (*)(void*, std::size_t, const void*, std::size_t);
  ContentSize content_size = nullptr;
  Decompress decompress = nullptr;
};

Zstd load_zstd() {
  void* library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return {};
  }
  return {reinterpret_cast<Zstd::ContentSize>(dlsym(library, "ZSTD_getFrameContentSize")),
          reinterpret_cast<Zstd::Decompress>(dlsym(library, "ZSTD_decompress"))};
}

constexpr std::uint32_t kZstdMagic = 0xfd2fb528;
constexpr unsigned long long kMaxBytes = 1ULL << 30;  // larger results are errors

std::vector<std::byte> decompress(const Code& code) {
  static const Zstd zstd = load_zstd();
  if (zstd.content_size == nullptr || zstd.decompress == nullptr) {
    return {};
  }
  const unsigned long long bytes = zstd.content_size(code.at, code.bytes);
  if (bytes > kMaxBytes) {
    return {};
  }
  std::vector<std::byte> plain(bytes);
  const std::size_t got = zstd.decompress(plain.data(), plain.size(), code.at, code.bytes);
  return got == plain.size() ? plain : std::vector<std::byte>{};
}

// An entry of such a section has four bytes. If the first is 4, the last two are the number of
// bytes that follow.
constexpr std::uint8_t kWithBytes = 4;
constexpr std::uint8_t kParameter =
    0x17;  // index, ordinal, offset, and a word with the size on top
constexpr unsigned kSizeShift = 18;
// An entry of this kind has the bytes of all parameters in its last two bytes.
constexpr std::uint8_t kWithValue = 3;
constexpr std::uint8_t kAllParameters = 0x19;

// None if there are parameters that the section does not list.
std::optional<Parameters> read_section(const std::byte* at, std::size_t bytes) {
  Parameters parameters;
  std::size_t all = 0;
  for (const std::byte* const end = at + bytes; at + 4 <= end;) {
    const auto format = read<std::uint8_t>(at);
    const auto what = read<std::uint8_t>(at + 1);
    const std::size_t length = format == kWithBytes ? read<std::uint16_t>(at + 2) : 0;
    if (format == kWithBytes && what == kParameter && length >= 12) {
      const std::size_t ordinal = read<std::uint16_t>(at + 8);
      if (parameters.size() <= ordinal) {
        parameters.resize(ordinal + 1);
      }
      parameters[ordinal] = {read<std::uint16_t>(at + 10),
                             read<std::uint32_t>(at + 12) >> kSizeShift};
    }
    if (format == kWithValue && what == kAllParameters) {
      all = read<std::uint16_t>(at + 2);
    }
    at += 4 + length;
  }
  return all != 0 && parameters.empty() ? std::nullopt : std::optional(parameters);
}

}  // namespace

std::unordered_map<std::string, Parameters> read_parameters(const Code& code) {
  std::vector<std::byte> plain;
  const std::byte* at = code.at;
  std::size_t bytes = code.bytes;
  if (bytes >= 4 && read<std::uint32_t>(at) == kZstdMagic) {
    plain = decompress(code);
    at = plain.data();
    bytes = plain.size();
  }
  std::unordered_map<std::string, Parameters> found;
  if (at == nullptr) {
    return found;
  }
  if (std::memcmp(at, ELFMAG, 1) != 0 || std::memcmp(at, ELFMAG, SELFMAG) != 0) {
    return read_ptx_parameters({reinterpret_cast<const char*>(at), bytes});
  }
  const auto header = read<Elf64_Ehdr>(at);
  const auto section = [&](std::size_t index) {
    return read<Elf64_Shdr>(at + header.e_shoff + index * header.e_shentsize);
  };
  const std::byte* const names = at + section(header.e_shstrndx).sh_offset;
  constexpr std::string_view kOfKernel = ".nv.info.";
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr info = section(i);
    const std::string_view name = reinterpret_cast<const char*>(names + info.sh_name);
    if (name.starts_with(kOfKernel)) {
      if (auto parameters = read_section(at + info.sh_offset, info.sh_size)) {
        found.emplace(name.substr(kOfKernel.size()), *std::move(parameters));
      }
    }
  }
  return found;
}

}  // namespace ferro::sim
