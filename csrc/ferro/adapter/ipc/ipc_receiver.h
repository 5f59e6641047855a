// The mapped memory of other processes, by its byte string (ipc_handle.h).
//
// A string is mapped once on each device; the mapping is closed when its last user releases it.
// Thread-safe. A thread that waits for a stopped process does not delay the others.
#pragma once

#include "ferro/adapter/ipc/peer_process.h"
#include "ferro/base/mutex.h"
#include "ferro/core/device/device_memory.h"

#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

namespace ferro {

class IpcReceiver {
 public:
  // Maps the memory and returns its first address. `device` is current in this thread. Throws
  // c10::Error or DriverError.
  std::shared_ptr<void> open(const std::string& handle, int device, DeviceMemory& core)
      FERRO_EXCLUDES(mutex_);

 private:
  std::shared_ptr<void> find(const std::string& key) FERRO_REQUIRES(mutex_);
  void forget(const std::string& key) FERRO_EXCLUDES(mutex_);

  PeerProcesses peers_;
  Mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<void>> open_ FERRO_GUARDED_BY(mutex_);
};

}  // namespace ferro
