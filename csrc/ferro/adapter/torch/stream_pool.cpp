#include "ferro/adapter/torch/stream_pool.h"

#include "ferro/adapter/torch/convert.h"
#include "ferro/driver/error.h"

#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <set>

namespace ferro {
namespace {

// c10 hands the streams of a priority out in turn, so a full round lists them and leaves the turn
// where it was. Other threads may take some meanwhile, for which there is a second round.
constexpr int kStreamsOfPriority = 32;

std::vector<StreamId> list_streams(c10::DeviceIndex device) {
  std::set<StreamId> streams;
  const auto [lowest, highest] = c10::cuda::CUDAStream::priority_range();
  for (int priority = lowest; priority >= highest; --priority) {
    for (int i = 0; i < 2 * kStreamsOfPriority; ++i) {
      streams.insert(to_stream_id(c10::cuda::getStreamFromPool(priority, device).stream()));
    }
  }
  return {streams.begin(), streams.end()};
}

}  // namespace

std::vector<StreamId> streams_of_pytorch(DeviceId device) {
  static std::mutex mutex;
  static std::map<DeviceId, std::vector<StreamId>> known;
  const std::lock_guard lock(mutex);
  auto found = known.find(device);
  if (found == known.end()) {
    try {
      found = known.emplace(device, list_streams(static_cast<c10::DeviceIndex>(device))).first;
    } catch (const c10::Error&) {
      throw DriverError("cudaStreamCreateWithPriority", "an error", 0, 0, device);
    }
  }
  return found->second;
}

}  // namespace ferro
