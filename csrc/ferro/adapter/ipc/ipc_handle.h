// The byte string under which a block is known to another process.
//
// It begins as PyTorch's own: a version, a type, and for memory made of pages a header with a file
// descriptor for each handle, of the process that the header names. PyTorch's own allocator can
// open ours when all handles have one size and a descriptor that is kept. After that comes our note, which it does not read: who
// the process is beyond doubt, where it hands out its descriptors, under which ids, and the keys
// for asking. So a handle is a secret of those who may use the memory.
//
// Pure.
#pragma once

#include "ferro/adapter/ipc/descriptor_protocol.h"
#include "ferro/adapter/ipc/peer_process.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ferro {

// The version that a string begins with. PyTorch 2.13 added the type of the handles.
enum class IpcFormat : std::uint8_t { kFirst = 2, kWithHandleType = 3 };

struct IpcUnit {
  std::size_t bytes = 0;
  int descriptor = -1;   // in the process that shared it; -1: it keeps none
  std::uint64_t id = 0;  // in its ExportTable; 0 when PyTorch's own allocator shared it
};

enum class IpcKind {
  kCudaMalloc,   // `cuda_handle`
  kDescriptors,  // `process` and `units`
  kFabric,       // `fabric_handles`, each of `segment_bytes`
};

struct IpcHandle {
  IpcKind kind = IpcKind::kDescriptors;
  std::string cuda_handle;  // 64 bytes
  ProcessIdentity from;     // all but its number of our own handles only
  std::vector<IpcUnit> units;
  std::size_t segment_bytes = 0;
  std::vector<std::string> fabric_handles;  // 64 bytes each
  ServerAddress server;                     // of our own handles only
};

// Not for kFabric.
std::string encode(const IpcHandle& handle, IpcFormat format);
// Throws std::invalid_argument with one sentence for what is not such a string.
IpcHandle decode(const std::string& text);

}  // namespace ferro
