// Pages that several processes map: a memory file with the pages' bytes, followed by one host page
// with a description. The bytes exist while any process has a descriptor or a mapping of the file.
//
// Owns one descriptor, which counts towards the soft limit of the process only if that equals the
// hard limit. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace ferro::sim {

class SharedFile {
 public:
  // None if the process is out of file descriptors.
  static std::optional<SharedFile> create(std::size_t bytes, int card);
  // Copies the descriptor. None if it is not such a file, or if the process is out of descriptors.
  static std::optional<SharedFile> adopt(int descriptor);
  // The file behind `descriptor` of another process, which must carry `id`.
  static std::optional<SharedFile> open(int process, int descriptor, std::uint64_t id);

  SharedFile(SharedFile&& other) noexcept;
  SharedFile& operator=(SharedFile&&) = delete;
  ~SharedFile();

  int descriptor() const { return descriptor_; }
  // A descriptor that the caller closes; -1 if the process is out of descriptors.
  int duplicate() const;
  std::size_t bytes() const { return note_.bytes; }
  // The number of the card that has the pages.
  int card() const { return note_.card; }
  // Unique among the files of all processes.
  std::uint64_t id() const { return note_.id; }

 private:
  struct Note {
    char magic[16];
    std::uint64_t bytes;
    std::uint64_t id;
    std::int32_t card;
  };
  SharedFile(int descriptor, const Note& note) : descriptor_(descriptor), note_(note) {}
  // Owns the descriptor already.
  static std::optional<SharedFile> read(int descriptor);

  int descriptor_;
  Note note_;
};

}  // namespace ferro::sim
