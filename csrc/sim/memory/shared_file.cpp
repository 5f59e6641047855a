#include "sim/memory/shared_file.h"

#include "ferro/base/bytes.h"

#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

namespace ferro::sim {
namespace {

constexpr char kMagic[16] = "ferro_sim_pages";
constexpr std::size_t kNotePage = 4 * kKiB;

// A real driver keeps no descriptor of shared memory. So the simulator's own should not count: they
// are moved above the soft limit, if the hard limit allows it.
int move_aside(int descriptor) {
  // The kernel's table of descriptors has a row for each number.
  constexpr rlim_t kMaxFiles = 1 << 16;
  rlimit before{};
  if (descriptor < 0 || getrlimit(RLIMIT_NOFILE, &before) != 0 || before.rlim_cur > kMaxFiles) {
    return descriptor;
  }
  const rlimit raised{before.rlim_max, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &raised);
  const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, static_cast<int>(before.rlim_cur));
  setrlimit(RLIMIT_NOFILE, &before);
  if (moved < 0) {
    return descriptor;
  }
  close(descriptor);
  return moved;
}

std::uint64_t random_id() {
  std::random_device source;
  return (std::uint64_t{source()} << 32) | source();
}

}  // namespace

std::optional<SharedFile> SharedFile::create(std::size_t bytes, int card) {
  const int descriptor = move_aside(memfd_create("ferro_sim_pages", MFD_CLOEXEC));
  if (descriptor < 0) {
    return std::nullopt;
  }
  Note note{};
  std::memcpy(note.magic, kMagic, sizeof(kMagic));
  note.bytes = bytes;
  note.id = random_id();
  note.card = card;
  SharedFile file(descriptor, note);
  if (ftruncate(descriptor, static_cast<off_t>(bytes + kNotePage)) != 0 ||
      pwrite(descriptor, &note, sizeof(note), static_cast<off_t>(bytes)) != sizeof(note)) {
    return std::nullopt;
  }
  return file;
}

std::optional<SharedFile> SharedFile::read(int descriptor) {
  if (descriptor < 0) {
    return std::nullopt;
  }
  SharedFile file(descriptor, Note{});
  struct stat status = {};
  if (fstat(descriptor, &status) != 0 || status.st_size < static_cast<off_t>(kNotePage)) {
    return std::nullopt;
  }
  const off_t end = status.st_size - static_cast<off_t>(kNotePage);
  if (pread(descriptor, &file.note_, sizeof(Note), end) != sizeof(Note) ||
      std::memcmp(file.note_.magic, kMagic, sizeof(kMagic)) != 0 ||
      file.note_.bytes != static_cast<std::uint64_t>(end)) {
    return std::nullopt;
  }
  return file;
}

std::optional<SharedFile> SharedFile::adopt(int descriptor) {
  return read(move_aside(fcntl(descriptor, F_DUPFD_CLOEXEC, 0)));
}

std::optional<SharedFile> SharedFile::open(int process, int descriptor, std::uint64_t id) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", process, descriptor);
  std::optional<SharedFile> file = read(::open(path, O_RDWR | O_CLOEXEC));
  return file && file->id() == id ? std::move(file) : std::nullopt;
}

SharedFile::SharedFile(SharedFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), note_(other.note_) {}

SharedFile::~SharedFile() {
  if (descriptor_ >= 0) {
    close(descriptor_);
  }
}

int SharedFile::duplicate() const { return fcntl(descriptor_, F_DUPFD_CLOEXEC, 0); }

}  // namespace ferro::sim
