// A source of segments of a test's own, over the simulated driver, whose faults strike it too.
#pragma once

#include "ferro/core/heap/segment_source.h"
#include "support/faulty_api.h"
#include "support/traffic.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <stdexcept>

namespace ferro::testing {

// What a source throws whose driver fails.
class SourceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class TestSource final : public SegmentSource {
 public:
  // `segments`: where it keeps which ones it has given.
  explicit TestSource(std::set<std::uint64_t>& segments) : segments_(segments) {}

  DevicePtr allocate(std::size_t bytes) override {
    CUdeviceptr base = 0;
    const CUresult result = FaultyApi::table().mem_alloc(&base, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      return kNull;
    }
    if (result != CUDA_SUCCESS) {
      throw SourceError("no segment");
    }
    segments_.insert(base);
    return DevicePtr{base};
  }
  bool release(DevicePtr base) override {
    if (!segments_.contains(address_of(base))) {
      throw ModelError("a segment comes back once, to the source that it came from");
    }
    const CUresult result = FaultyApi::table().mem_free(address_of(base));
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
      throw SourceError("not now");
    }
    if (result == CUDA_SUCCESS) {
      segments_.erase(address_of(base));
    }
    return result == CUDA_SUCCESS;
  }

 private:
  std::set<std::uint64_t>& segments_;
};

}  // namespace ferro::testing
