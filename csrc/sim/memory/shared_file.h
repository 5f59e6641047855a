// Pages that several processes map: a memory file with the pages' bytes, and after them one host
// page that says what they are. Whoever holds a descriptor of it, or has it mapped, keeps the bytes.
//
// Owns one descriptor, which counts towards the soft limit of the process only where that is the hard
// one too. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace ferro::sim {

class SharedFile {
 public:
  // None when the process is out of file descriptors.
  static std::optional<SharedFile> create(std::size_t bytes, int device);
  // Takes a copy of the descriptor. None when it is not such a file, or out of descriptors.
  static std::optional<SharedFile> adopt(int descriptor);
  // The file behind `descriptor` of another process, which must carry `id`.
  static std::optional<SharedFile> open(int process, int descriptor, std::uint64_t id);

  SharedFile(SharedFile&& other) noexcept;
  SharedFile& operator=(SharedFile&&) = delete;
  ~SharedFile();

  int descriptor() const { return descriptor_; }
  // A descriptor for somebody else to close; -1 when the process is out of them.
  int duplicate() const;
  std::size_t bytes() const { return note_.bytes; }
  int device() const { return note_.device; }
  // Distinguishes all files, of all processes.
  std::uint64_t id() const { return note_.id; }

 private:
  struct Note {
    char magic[16];
    std::uint64_t bytes;
    std::uint64_t id;
    std::int32_t device;
  };
  SharedFile(int descriptor, const Note& note) : descriptor_(descriptor), note_(note) {}
  // Owns the descriptor already.
  static std::optional<SharedFile> read(int descriptor);

  int descriptor_;
  Note note_;
};

}  // namespace ferro::sim
