// An entry of the trace as it is stored: one cache line. PyTorch's own entry has strings, which are
// nearly always empty, and takes three.
#pragma once

#include "ferro/adapter/torch/torch_compat.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace ferro {

class alignas(64) TraceRecord {
 public:
  using TraceEntry = c10::cuda::CUDACachingAllocator::TraceEntry;
  using Context = std::shared_ptr<c10::GatheredContext>;

  // Data that few entries have.
  struct Rare {
    Context context;
    std::string compile_context;    // empty: none
    std::string user_metadata;      // of the thread, or about a block
    std::string internal_metadata;  // from torch 2.15 on
    std::string note;               // ferro_alloc's
  };

  // Takes the current time.
  TraceRecord(TraceEntry::Action action, c10::DeviceIndex device, std::size_t address,
              std::size_t size, void* stream, c10::MempoolId_t pool)
      : address_(address),
        size_(size),
        stream_(stream),
        pool_(pool),
        time_(c10::getApproximateTime()),
        action_(static_cast<std::uint8_t>(action)),
        device_(device) {}

  TraceEntry::Action action() const { return static_cast<TraceEntry::Action>(action_); }
  Rare& rare() {
    if (rare_ == nullptr) {
      rare_ = std::make_unique<Rare>();
    }
    return *rare_;
  }

  // In PyTorch's form; the time is still in ticks.
  TraceEntry entry() const {
    TraceEntry entry(action(), device_, address_, size_, stream_, pool_, time_, nullptr, "N/A");
    if (rare_ != nullptr) {
      entry.context_ = rare_->context;
      entry.user_metadata_ = rare_->user_metadata;
      set_internal_metadata(entry, rare_->internal_metadata);
      if (!rare_->compile_context.empty()) {
        entry.compile_context_ = rare_->compile_context;
      }
      if (!rare_->note.empty()) {
        set_note(entry, rare_->note);
      }
    }
    return entry;
  }

 private:
  std::size_t address_;
  std::size_t size_;
  void* stream_;
  c10::MempoolId_t pool_;
  c10::approx_time_t time_;
  std::unique_ptr<Rare> rare_;
  std::uint8_t action_;
  c10::DeviceIndex device_;
};

static_assert(sizeof(TraceRecord) == 64);

}  // namespace ferro
