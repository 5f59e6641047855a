#include "ferro/graph/capture.h"

#include "ferro/base/check.h"
#include "ferro/driver/error.h"

#include <utility>

namespace ferro {
namespace {

class DriverGraph final : public ExecutableGraph {
 public:
  DriverGraph(Driver& driver, GraphExecId graph) : driver_(driver), graph_(graph) {}
  ~DriverGraph() override { driver_.destroy(graph_); }
  void launch(StreamId stream) override { driver_.launch(graph_, stream); }
  void upload(StreamId stream) override { driver_.upload(graph_, stream); }

 private:
  Driver& driver_;
  const GraphExecId graph_;
};

}  // namespace

CaptureStatus capture_status(Driver& driver, StreamId stream) {
  const CaptureInfo info = driver.capture_info(stream);
  // Active without an id: the driver's answer is about other streams.
  return info.status == CaptureStatus::kActive && info.id == 0 ? CaptureStatus::kNone : info.status;
}

std::unique_ptr<CaptureGuard> CaptureGuard::begin(Driver& driver, StreamId stream, CaptureMode mode,
                                                  std::shared_ptr<CapturePool> pool) {
  if (pool != nullptr && pool->is_sealed()) {
    return nullptr;
  }
  std::unique_ptr<CaptureGuard> guard(new CaptureGuard(driver, stream, std::move(pool)));
  driver.begin_capture(stream, mode);
  guard->running_ = true;
  return guard;
}

CaptureGuard::~CaptureGuard() {
  if (!running_) {
    return;
  }
  try {
    driver_.destroy(driver_.end_capture(stream_));
  } catch (const DriverError&) {  // NOLINT(bugprone-empty-catch): ended, and there is no graph
  }
}

std::unique_ptr<CapturedGraph> CaptureGuard::end() {
  FERRO_CHECK(running_, "end() of a capture that was ended");
  running_ = false;
  const GraphExecId graph = driver_.end_capture(stream_);
  return std::make_unique<CapturedGraph>(std::make_unique<DriverGraph>(driver_, graph), pool_);
}

}  // namespace ferro
