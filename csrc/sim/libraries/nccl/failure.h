// An error as NCCL reports it: a code, and a sentence for ncclGetLastError.
#pragma once

#include <nccl.h>
#include <string>

namespace ferro::sim::nccl {

struct Failure {
  ncclResult_t result = ncclSuccess;
  std::string text;

  explicit operator bool() const { return result != ncclSuccess; }
};

}  // namespace ferro::sim::nccl
