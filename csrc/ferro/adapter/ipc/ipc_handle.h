// The byte string that identifies a block to another process.
//
// It begins like PyTorch's own: a version, a type, and for memory made of pages a header with the
// owner's process number and its file descriptor for each handle. PyTorch's own allocator can open
// it if all handles have one size and a kept descriptor. Our note follows, which PyTorch does not
// read: the exact identity of the process, the address of its descriptor server, and the ids and
// keys for the request. So a handle is a secret that grants access to the memory.
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

// The version at the beginning of a string. PyTorch 2.13 added the type of the handles.
enum class IpcFormat : std::uint8_t { kFirst = 2, kWithHandleType = 3 };

struct IpcUnit {
  std::size_t bytes = 0;
  int descriptor = -1;   // in the owner's process; -1: none is kept
  std::uint64_t id = 0;  // in its ExportTable; 0 if PyTorch's own allocator shared it
};

enum class IpcKind {
  kCudaMalloc,   // `cuda_handle`
  kDescriptors,  // `process` and `units`
  kFabric,       // `fabric_handles`, each of `segment_bytes`
};

struct IpcHandle {
  IpcKind kind = IpcKind::kDescriptors;
  std::string cuda_handle;  // 64 bytes
  ProcessIdentity from;     // only the number if PyTorch's own allocator shared it
  std::vector<IpcUnit> units;
  std::size_t segment_bytes = 0;
  std::vector<std::string> fabric_handles;  // 64 bytes each
  ServerAddress server;                     // empty if PyTorch's own allocator shared it
};

// Not for kFabric.
std::string encode(const IpcHandle& handle, IpcFormat format);
// Throws std::invalid_argument with one sentence if the text is no such string.
IpcHandle decode(const std::string& text);

}  // namespace ferro
