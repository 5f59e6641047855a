#include "sim/memory/shared_capacity.h"

#include "ferro/base/check.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace ferro::sim {
namespace {

constexpr char kCardsMagic[16] = "ferro_sim_cards";
constexpr std::size_t kMaxProcesses = 1024;

// A lock of the process on one byte of the file. The kernel releases such locks when the process
// ends, or closes any descriptor of the file, of which it has only one. A fork does not inherit
// them.
bool lock_byte(int descriptor, std::size_t byte, short type, int command) {
  struct flock lock = {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  int result = 0;
  do {
    result = fcntl(descriptor, command, &lock);
  } while (result != 0 && errno == EINTR);
  return result == 0 && (command != F_GETLK || lock.l_type != F_UNLCK);
}

// Byte 0 is the lock of the whole file; the bytes after it are those of the entries.
std::size_t byte_of(std::size_t entry) { return 1 + entry; }

}  // namespace

struct SharedCapacity::File {
  static constexpr std::size_t kMaxDevices = 16;
  struct Entry {
    std::int64_t process;  // 0: free
    std::array<std::uint64_t, kMaxDevices> bytes;
  };

  char magic[16];
  std::uint64_t entries_used;  // all entries after these are free
  std::array<std::uint64_t, kMaxDevices> peak;
  std::array<Entry, kMaxProcesses> entries;
};

class SharedCapacity::Locked {
 public:
  explicit Locked(int descriptor) : descriptor_(descriptor) {
    FERRO_CHECK(lock_byte(descriptor_, 0, F_WRLCK, F_SETLKW), std::string(std::strerror(errno)));
  }
  ~Locked() { lock_byte(descriptor_, 0, F_UNLCK, F_SETLK); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  const int descriptor_;
};

std::unique_ptr<SharedCapacity> SharedCapacity::create() {
  const int descriptor = memfd_create("ferro_sim_cards", MFD_CLOEXEC);
  if (descriptor < 0) {
    return nullptr;
  }
  if (ftruncate(descriptor, sizeof(File)) != 0 ||
      pwrite(descriptor, kCardsMagic, sizeof(kCardsMagic), 0) != sizeof(kCardsMagic)) {
    close(descriptor);
    return nullptr;
  }
  return join(descriptor);
}

std::unique_ptr<SharedCapacity> SharedCapacity::open(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) {
    return nullptr;
  }
  char magic[sizeof(kCardsMagic)] = {};
  struct stat status = {};
  if (fstat(descriptor, &status) != 0 || status.st_size != static_cast<off_t>(sizeof(File)) ||
      pread(descriptor, magic, sizeof(magic), 0) != sizeof(magic) ||
      std::memcmp(magic, kCardsMagic, sizeof(kCardsMagic)) != 0) {
    close(descriptor);
    return nullptr;
  }
  return join(descriptor);
}

std::unique_ptr<SharedCapacity> SharedCapacity::join(int descriptor) {
  void* const mapped =
      mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) {
    close(descriptor);
    return nullptr;
  }
  auto* const file = static_cast<File*>(mapped);
  std::unique_ptr<SharedCapacity> joined(new SharedCapacity(descriptor, file));
  joined->entry_ = kMaxProcesses;
  const Locked locked(descriptor);
  joined->clear_ended();
  const auto free = std::find_if(file->entries.begin(), file->entries.end(),
                                 [](const File::Entry& entry) { return entry.process == 0; });
  const auto entry = static_cast<std::size_t>(free - file->entries.begin());
  if (entry == kMaxProcesses || !lock_byte(descriptor, byte_of(entry), F_WRLCK, F_SETLK)) {
    return nullptr;
  }
  *free = File::Entry{getpid(), {}};
  joined->entry_ = entry;
  file->entries_used = std::max<std::uint64_t>(file->entries_used, entry + 1);
  return joined;
}

SharedCapacity::~SharedCapacity() {
  if (entry_ < kMaxProcesses) {
    const Locked locked(descriptor_);
    file_->entries[entry_] = File::Entry{};
  }
  munmap(file_, sizeof(File));
  close(descriptor_);
}

std::string SharedCapacity::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(descriptor_);
}

void SharedCapacity::clear_ended() {
  for (std::size_t i = 0; i < file_->entries_used; ++i) {
    File::Entry& entry = file_->entries[i];
    if (i != entry_ && entry.process != 0 &&
        !lock_byte(descriptor_, byte_of(i), F_WRLCK, F_GETLK)) {
      entry = File::Entry{};
    }
  }
}

std::size_t SharedCapacity::sum(int device) const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < file_->entries_used; ++i) {
    bytes += file_->entries[i].bytes[static_cast<std::size_t>(device)];
  }
  return bytes;
}

void SharedCapacity::change(int device, std::size_t bytes) {
  const auto index = static_cast<std::size_t>(device);
  file_->entries[entry_].bytes[index] += bytes;
  file_->peak[index] = std::max<std::uint64_t>(file_->peak[index], sum(device));
}

bool SharedCapacity::take(int device, std::size_t bytes, std::size_t capacity) {
  const Locked locked(descriptor_);
  const auto fits = [&] {
    const std::size_t held = sum(device);
    return held <= capacity && bytes <= capacity - held;
  };
  if (!fits()) {
    clear_ended();
    if (!fits()) {
      return false;
    }
  }
  change(device, bytes);
  return true;
}

void SharedCapacity::add(int device, std::size_t bytes) {
  const Locked locked(descriptor_);
  change(device, bytes);
}

void SharedCapacity::give_back(int device, std::size_t bytes) {
  const Locked locked(descriptor_);
  file_->entries[entry_].bytes[static_cast<std::size_t>(device)] -= bytes;
}

std::size_t SharedCapacity::allocated(int device) {
  const Locked locked(descriptor_);
  clear_ended();
  return sum(device);
}

std::size_t SharedCapacity::peak(int device) const {
  const Locked locked(descriptor_);
  return file_->peak[static_cast<std::size_t>(device)];
}

std::vector<SharedCapacity::Holder> SharedCapacity::holders(int device) {
  const Locked locked(descriptor_);
  clear_ended();
  std::vector<Holder> found;
  for (std::size_t i = 0; i < file_->entries_used; ++i) {
    const File::Entry& entry = file_->entries[i];
    if (const auto bytes = entry.bytes[static_cast<std::size_t>(device)]; bytes > 0) {
      found.push_back({static_cast<int>(entry.process), bytes});
    }
  }
  return found;
}

}  // namespace ferro::sim
