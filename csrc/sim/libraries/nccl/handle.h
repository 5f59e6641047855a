// The objects behind NCCL's handles.
#pragma once

#include "sim/libraries/nccl/communicator.h"

// `shared` is null until the group that creates it has ended.
struct ncclComm {
  std::shared_ptr<ferro::sim::nccl::Communicator> shared;
};

namespace ferro::sim::nccl {

// Keeps the text of a failure for ncclGetLastError and returns its code.
ncclResult_t status(const Failure& failure);

// Calls `act` with the communicator of a handle, or refuses one that has none.
template <typename Act>
ncclResult_t with(ncclComm_t handle, const Act& act) {
  if (handle == nullptr || handle->shared == nullptr) {
    return status({ncclInvalidArgument, "there is no communicator at this address"});
  }
  return status(act(handle->shared));
}

}  // namespace ferro::sim::nccl
