#include "ferro/adapter/ipc/ipc_handle.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <sys/types.h>

namespace ferro {
namespace {

constexpr char kTypeCudaMalloc = 'c';
constexpr char kTypePages = 'e';
// Handles of several sizes or without a kept descriptor. PyTorch's own allocator cannot map them,
// and refuses this type.
constexpr char kTypeOwnPages = 'f';
constexpr std::size_t kCudaHandleBytes = 64;
// Ends with the version of the note.
constexpr char kMagic[8] = {'f', 'e', 'r', 'r', 'o', 'i', 'p', '2'};

// As PyTorch writes it.
struct Header {
  pid_t process;
  std::size_t segment_bytes;
  std::size_t handles;
};

// Follows the header since IpcFormat::kWithHandleType, with the padding of PyTorch's struct.
enum class HandleType : std::uint64_t { kDescriptor = 1, kFabric = 2 };
constexpr std::uint64_t kHandleTypeMask = 0xffffffff;

struct NoteUnit {
  std::uint64_t id;
  std::uint64_t bytes;
};

template <typename T>
void append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

class Reader {
 public:
  explicit Reader(const std::string& text) : text_(text) {}
  std::size_t left() const { return text_.size() - at_; }
  template <typename T>
  T next() {
    T value{};
    const std::string bytes = next_bytes(sizeof(value));
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }
  std::string next_bytes(std::size_t count) {
    if (count > left()) {
      throw std::invalid_argument("a handle of shared memory ends too early");
    }
    at_ += count;
    return text_.substr(at_ - count, count);
  }

 private:
  const std::string& text_;
  std::size_t at_ = 0;
};

void read_note(Reader& reader, IpcHandle& handle) {
  handle.from.started = reader.next<std::uint64_t>();
  handle.from.pid_namespace = reader.next<std::uint64_t>();
  handle.server.request_key = reader.next<SharingKey>();
  handle.server.answer_key = reader.next<SharingKey>();
  handle.server.name = reader.next_bytes(reader.next<std::uint32_t>());
  for (IpcUnit& unit : handle.units) {
    const auto note = reader.next<NoteUnit>();
    unit.id = note.id;
    unit.bytes = note.bytes;
  }
}

bool is_fabric(Reader& reader, const Header& header, IpcFormat format) {
  if (format < IpcFormat::kWithHandleType) {
    return reader.left() == header.handles * kCudaHandleBytes;
  }
  const auto type = static_cast<HandleType>(reader.next<std::uint64_t>() & kHandleTypeMask);
  if (type != HandleType::kDescriptor && type != HandleType::kFabric) {
    throw std::invalid_argument("a handle of shared memory is of unknown type");
  }
  return type == HandleType::kFabric;
}

void read_pages(Reader& reader, IpcHandle& handle, IpcFormat format) {
  const auto header = reader.next<Header>();
  handle.from.process = header.process;
  handle.segment_bytes = header.segment_bytes;
  if (header.handles == 0 || header.handles > reader.left()) {
    throw std::invalid_argument("a handle of shared memory counts " +
                                std::to_string(header.handles) + " pieces");
  }
  if (is_fabric(reader, header, format)) {
    handle.kind = IpcKind::kFabric;
    for (std::size_t i = 0; i < header.handles; ++i) {
      handle.fabric_handles.push_back(reader.next_bytes(kCudaHandleBytes));
    }
    return;
  }
  for (std::size_t i = 0; i < header.handles; ++i) {
    handle.units.push_back({header.segment_bytes, reader.next<int>(), 0});
  }
  if (reader.left() >= sizeof(kMagic) &&
      reader.next_bytes(sizeof(kMagic)) == std::string(kMagic, sizeof(kMagic))) {
    read_note(reader, handle);
  }
  for (const IpcUnit& unit : handle.units) {
    if (unit.bytes == 0) {
      throw std::invalid_argument("a handle of shared memory has a piece without a size");
    }
  }
}

}  // namespace

std::string encode(const IpcHandle& handle, IpcFormat format) {
  const char version = static_cast<char>(format);
  if (handle.kind == IpcKind::kCudaMalloc) {
    return std::string{version, kTypeCudaMalloc} + handle.cuda_handle;
  }
  const std::vector<IpcUnit>& units = handle.units;
  const bool equal = std::ranges::all_of(
      units, [&](const IpcUnit& unit) { return unit.bytes == units.front().bytes; });
  const bool taken =
      std::ranges::all_of(units, [](const IpcUnit& unit) { return unit.descriptor >= 0; });
  std::string text{version, equal && taken ? kTypePages : kTypeOwnPages};
  Header header;
  // Clears the padding, because equal handles must be equal strings.
  std::memset(&header, 0, sizeof(header));
  header.process = handle.from.process;
  header.segment_bytes = equal ? units.front().bytes : 0;
  header.handles = units.size();
  append(text, header);
  if (format >= IpcFormat::kWithHandleType) {
    append(text, HandleType::kDescriptor);
  }
  for (const IpcUnit& unit : units) {
    append(text, unit.descriptor);
  }
  append(text, kMagic);
  append(text, handle.from.started);
  append(text, handle.from.pid_namespace);
  append(text, handle.server.request_key);
  append(text, handle.server.answer_key);
  append(text, static_cast<std::uint32_t>(handle.server.name.size()));
  text += handle.server.name;
  for (const IpcUnit& unit : units) {
    append(text, NoteUnit{unit.id, unit.bytes});
  }
  return text;
}

IpcHandle decode(const std::string& text) {
  IpcHandle handle;
  Reader reader(text);
  char type = kTypeCudaMalloc;
  auto format = IpcFormat::kFirst;
  // Without a version it is CUDA's plain handle.
  if (text.size() != kCudaHandleBytes) {
    format = static_cast<IpcFormat>(reader.next<unsigned char>());
    if (format > IpcFormat::kWithHandleType) {
      throw std::invalid_argument(
          "received sharable handle from a future version of torch that this version does not know "
          "how to handle");
    }
    type = reader.next<char>();
  }
  switch (type) {
    case kTypeCudaMalloc:
      handle.kind = IpcKind::kCudaMalloc;
      handle.cuda_handle = reader.next_bytes(kCudaHandleBytes);
      return handle;
    case kTypePages:
    case kTypeOwnPages:
      read_pages(reader, handle, format);
      return handle;
    default:
      throw std::invalid_argument("unexpected or illformed shareable handle type");
  }
}

}  // namespace ferro
