// Planted mistakes in points of the device: random programs that free memory in use must find them.
#include "model/device_model_program.h"
#include "support/faulty_api.h"
#include "support/random_bytes.h"

#include <gtest/gtest.h>

#include <set>

namespace ferro::testing {
namespace late_uses_test {

// An event of the legacy stream only, which is not ordered after non-blocking streams.
CUresult on_one_stream(CUcontext, CUevent event) {
  return SimGpu::api().event_record(event, nullptr);
}

// The event is never recorded, so it counts as complete.
CUresult not_at_all(CUcontext, CUevent) { return CUDA_SUCCESS; }

// Keeps the earlier record of an event: stamps are older than they claim.
std::set<CUevent>& recorded() {
  static std::set<CUevent> events;
  return events;
}
CUresult once_for_each_event(CUcontext context, CUevent event) {
  return recorded().insert(event).second ? SimGpu::api().ctx_record_event(context, event)
                                         : CUDA_SUCCESS;
}

// A point of one device only: the events of the others are never recorded.
CUresult on_one_device(CUcontext context, CUevent event) {
  CUcontext own = nullptr;
  SimGpu::expect(SimGpu::api().primary_ctx_retain(&own, 0));
  return context == own ? SimGpu::api().ctx_record_event(context, event) : CUDA_SUCCESS;
}

// Does any of the programs notice? The seeds are those of the model's own tests.
bool is_found(CUresult (*record)(CUcontext, CUevent), unsigned programs) {
  for (unsigned seed = 1; seed <= programs; ++seed) {
    recorded().clear();
    FaultyApi::plant_record(record);
    const auto bytes = random_bytes(5000 + seed, 3000);
    try {
      run_program(decode(bytes.data(), bytes.size()),
                  "mode=adversarial,turn=0.02,seed=" + std::to_string(seed));
    } catch (const ModelError&) {
      FaultyApi::plant_record(nullptr);
      return true;
    }
  }
  FaultyApi::plant_record(nullptr);
  return false;
}

TEST(LateUses, NoProgramFailsWithoutAMistake) { EXPECT_FALSE(is_found(nullptr, 20)); }
TEST(LateUses, APointOfOneStreamIsFound) { EXPECT_TRUE(is_found(on_one_stream, 60)); }
TEST(LateUses, APointOfOneDeviceIsFound) { EXPECT_TRUE(is_found(on_one_device, 60)); }
TEST(LateUses, APointThatClaimsToBeOverIsFound) { EXPECT_TRUE(is_found(not_at_all, 60)); }
TEST(LateUses, AStampThatIsTooOldIsFound) { EXPECT_TRUE(is_found(once_for_each_event, 60)); }

}  // namespace late_uses_test
}  // namespace ferro::testing
