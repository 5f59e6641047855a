// NCCL's functions that move bytes between ranks.
#include "sim/libraries/nccl/group.h"
#include "sim/libraries/nccl/handle.h"

namespace ferro::sim::nccl {
namespace {

constexpr int kNone = -1;

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

struct Arguments {
  Call call;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;
  int type = 0;
  int reduction = kNone;
  int root = kNone;
  int peer = kNone;
};

ncclResult_t call(const Arguments& given, ncclComm_t comm, cudaStream_t stream) {
  return with(comm, [&](const std::shared_ptr<Communicator>& communicator) -> Failure {
    const auto has = [&](int rank) { return rank >= 0 && rank < communicator->ranks(); };
    const bool between_two = given.call == Call::kSend || given.call == Call::kReceive;
    Transfer transfer;
    transfer.terms = {given.call, given.type, given.reduction, given.root, given.count};
    if (given.reduction >= ncclNumOps) {
      transfer.scaling = communicator->find_scaling(given.reduction);
      transfer.terms.reduction = transfer.scaling ? ncclSum : ncclNumOps;
    }
    if (bytes_of(given.type) == 0 || transfer.terms.reduction >= ncclNumOps ||
        (given.root != kNone && !has(given.root)) || (between_two && !has(given.peer))) {
      return {ncclInvalidArgument, "an unknown type, reduction or rank"};
    }
    transfer.peer = given.peer;
    transfer.from = address_of(given.from);
    transfer.to = address_of(given.to);
    transfer.stream = stream;
    return add(communicator, std::move(transfer));
  });
}

}  // namespace
}  // namespace ferro::sim::nccl

using ferro::sim::nccl::call;
using ferro::sim::nccl::Call;

extern "C" {

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return call({Call::kAllReduce, from, to, count, type, reduction}, comm, stream);
}

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return call({.call = Call::kBroadcast,
               .from = from,
               .to = to,
               .count = count,
               .type = type,
               .root = root},
              comm, stream);
}

ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                        ncclRedOp_t reduction, int root, ncclComm_t comm, cudaStream_t stream) {
  return call({Call::kReduce, from, to, count, type, reduction, root}, comm, stream);
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return call({Call::kAllGather, from, to, count, type}, comm, stream);
}

ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclRedOp_t reduction, ncclComm_t comm, cudaStream_t stream) {
  return call({Call::kReduceScatter, from, to, count, type, reduction}, comm, stream);
}

ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) {
  return call({Call::kAllToAll, from, to, count, type}, comm, stream);
}

ncclResult_t ncclGather(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return call(
      {.call = Call::kGather, .from = from, .to = to, .count = count, .type = type, .root = root},
      comm, stream);
}

ncclResult_t ncclScatter(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream) {
  return call(
      {.call = Call::kScatter, .from = from, .to = to, .count = count, .type = type, .root = root},
      comm, stream);
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return call({.call = Call::kSend, .from = from, .count = count, .type = type, .peer = peer}, comm,
              stream);
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call({.call = Call::kReceive, .to = to, .count = count, .type = type, .peer = peer}, comm,
              stream);
}

}  // extern "C"
