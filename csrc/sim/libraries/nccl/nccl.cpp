// NCCL: communicators, groups, user-defined reductions and memory. Functions that move bytes are in
// collectives.cpp. Configurations are ignored: every call is blocking.
#include "sim/libraries/cuda/unsupported.h"
#include "sim/libraries/nccl/group.h"
#include "sim/libraries/nccl/handle.h"

#include <cstdio>
#include <cstring>
#include <sys/random.h>

namespace ferro::sim::nccl {

ncclResult_t status(const Failure& failure) {
  if (failure) {
    keep_last_error(failure.text);
  }
  return failure.result;
}

namespace {

std::string text_of(const ncclUniqueId& id) {
  std::string text;
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(id.internal[i]));
    text += digits;
  }
  return text;
}

// Sets `*out` to a handle of the communicator from `make`, which waits for the other ranks.
ncclResult_t make_communicator(ncclComm_t* out,
                               const std::function<std::shared_ptr<Communicator>(Failure&)>& make) {
  if (out == nullptr) {
    return status({ncclInvalidArgument, "the address for the communicator is null"});
  }
  auto* const handle = new ncclComm;
  *out = handle;
  const Failure failure = add([=]() -> Failure {
    Failure failure;
    handle->shared = make(failure);
    if (handle->shared == nullptr) {
      delete handle;
      *out = nullptr;
    }
    return failure;
  });
  return status(failure);
}

ncclResult_t init_rank(ncclComm_t* out, int ranks, const ncclUniqueId& id, int rank,
                       Communicator::Device device) {
  return make_communicator(out, [=, name = text_of(id)](Failure& failure) {
    return Communicator::create(name, ranks, rank, device, failure);
  });
}

}  // namespace
}  // namespace ferro::sim::nccl

using ferro::sim::nccl::bytes_of;
using ferro::sim::nccl::Communicator;
using ferro::sim::nccl::end_group;
using ferro::sim::nccl::Failure;
using ferro::sim::nccl::init_rank;
using ferro::sim::nccl::last_error;
using ferro::sim::nccl::make_communicator;
using ferro::sim::nccl::Scaling;
using ferro::sim::nccl::start_group;
using ferro::sim::nccl::status;
using ferro::sim::nccl::with;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "an error of CUDA";
    case ncclSystemError:
      return "an error of the system";
    case ncclInvalidArgument:
      return "an invalid argument";
    case ncclInvalidUsage:
      return "an invalid use";
    case ncclRemoteError:
      return "another rank has ended";
    case ncclInProgress:
      return "in progress";
    default:
      return "an internal error";
  }
}

const char* ncclGetLastError(ncclComm_t) { return last_error(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  if (getrandom(id->internal, 16, 0) != 16) {
    return status({ncclSystemError, "the system gave no random bytes"});
  }
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return init_rank(comm, ranks, id, rank, Communicator::current_device());
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t*) {
  return ncclCommInitRank(comm, ranks, id, rank);
}

ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int ids,
                                      ncclUniqueId* id, ncclConfig_t*) {
  if (ids < 1 || id == nullptr) {
    return status({ncclInvalidArgument, "expected a unique id"});
  }
  return ncclCommInitRank(comm, ranks, *id, rank);
}

ncclResult_t ncclCommInitAll(ncclComm_t* comms, int ranks, const int* devices) {
  ncclUniqueId id;
  if (const ncclResult_t result = ncclGetUniqueId(&id)) {
    return result;
  }
  start_group();
  for (int rank = 0; rank < ranks; ++rank) {
    Communicator::Device device;
    device.index = devices != nullptr ? devices[rank] : rank;
    cuDevicePrimaryCtxRetain(&device.context, device.index);
    init_rank(comms + rank, ranks, id, rank, device);
  }
  return status(end_group());
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* out, ncclConfig_t*) {
  return with(comm, [&](const std::shared_ptr<Communicator>& parent) -> Failure {
    return {make_communicator(out,
                              [=](Failure& failure) { return parent->split(color, key, failure); }),
            last_error()};
  });
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* out,
                            ncclConfig_t*, int) {
  return with(comm, [&](const std::shared_ptr<Communicator>& parent) -> Failure {
    const std::vector<int> without(excluded, excluded + count);
    return {
        make_communicator(out, [=](Failure& failure) { return parent->shrink(without, failure); }),
        last_error()};
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return with(comm, [](const auto&) { return Failure{}; });
}

// Queued operations still run: they keep the communicator alive.
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm != nullptr && comm->shared != nullptr) {
    comm->shared->abort();
  }
  return ncclCommDestroy(comm);
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  return with(comm, [](const auto& communicator) {
    communicator->abort();
    return Failure{};
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return with(comm, [&](const auto& communicator) {
    *error = communicator->failure().result;
    return Failure{};
  });
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return with(comm, [&](const auto& communicator) {
    *count = communicator->ranks();
    return Failure{};
  });
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  return with(comm, [&](const auto& communicator) {
    *device = communicator->device().index;
    return Failure{};
  });
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return with(comm, [&](const auto& communicator) {
    *rank = communicator->rank();
    return Failure{};
  });
}

ncclResult_t ncclGroupStart() {
  start_group();
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() { return status(end_group()); }

// The simulated GPU does not estimate durations of groups.
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t*) {
  end_group(true);
  ferro_sim_report_unsupported("ncclGroupSimulateEnd");
  return status({ncclInvalidUsage, "the simulated GPU has no ncclGroupSimulateEnd"});
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* reduction, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return with(comm, [&](const auto& communicator) {
    Scaling scaling;
    scaling.type = type;
    if (residence == ncclScalarDevice) {
      scaling.address = reinterpret_cast<std::uint64_t>(scalar);
    } else {
      std::memcpy(scaling.value, scalar, bytes_of(type));
    }
    *reduction = static_cast<ncclRedOp_t>(communicator->add_scaling(scaling));
    return Failure{};
  });
}

ncclResult_t ncclRedOpDestroy(ncclRedOp_t reduction, ncclComm_t comm) {
  return with(comm, [&](const auto& communicator) {
    return communicator->remove_scaling(reduction)
               ? Failure{}
               : Failure{ncclInvalidArgument, "there is no such reduction"};
  });
}

// Registered memory is transferred like any other.
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, size_t, void** handle) {
  return with(comm, [&](const auto&) {
    *handle = memory;
    return Failure{};
  });
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  return with(comm, [](const auto&) { return Failure{}; });
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, size_t, ncclWindow_t* window,
                                    int) {
  return with(comm, [&](const auto&) {
    *window = static_cast<ncclWindow_t>(memory);
    return Failure{};
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t) {
  return with(comm, [](const auto&) { return Failure{}; });
}

}  // extern "C"
