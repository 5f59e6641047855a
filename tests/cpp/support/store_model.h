// A naive model of the page store, compared with the real one: the lent handles, the number of idle
// pages.
#pragma once

#include "ferro/core/pages/page_store.h"
#include "ferro/driver/error.h"
#include "support/decoding.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"
#include "support/store_calls.h"
#include "support/traffic.h"

#include <algorithm>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace ferro::testing {

struct TakePages {
  std::size_t count;
};
struct TakePagesExactly {
  std::size_t count;
};
struct TakeIdlePages {
  std::size_t count;
};
struct PutPages {  // in whole handles, at most what is lent
  std::size_t count;
};
struct TrimPages {
  std::size_t count;
};
struct LimitPages {  // 0: none
  std::size_t count;
};
struct FailCall {  // the call-th create or release from now
  bool release;
  unsigned call;
  bool out_of_memory;
};
using StoreInstruction = std::variant<TakePages, TakePagesExactly, TakeIdlePages, PutPages,
                                      TrimPages, LimitPages, FailCall>;

class StoreModel {
 public:
  static constexpr std::size_t kPages = 20;

  explicit StoreModel(const HandleRules& handles)
      : store_(driver_, timeline_, kPageBytes, handles) {
    FaultyApi::reset();
  }
  ~StoreModel() { FaultyApi::reset(); }

  void perform(const StoreInstruction& instruction) {
    std::visit([this](const auto& i) { (*this)(i); }, instruction);
    check();
  }
  void finish() {
    FaultyApi::reset();
    perform(PutPages{lent_pages_});
    perform(TrimPages{kPages});
    expect(held() == 0, "nothing is left");
  }

  void operator()(const TakePages& i) { take(i.count, Fit::kAtLeast); }
  void operator()(const TakePagesExactly& i) { take(i.count, Fit::kExactly); }
  void operator()(const TakeIdlePages& i) {
    Handles pages;
    const bool taken = take_idle(store_, i.count, pages);
    expect(taken == (i.count <= idle_), "idle pages can be taken");
    expect(taken ? count_pages(pages) >= i.count : pages.empty(), "all or none");
    idle_ -= count_pages(pages);
    lend(pages);
  }
  void operator()(const PutPages& i) {
    Handles pages;
    while (count_pages(pages) < i.count && !lent_.empty()) {
      const auto [handle, count] = *lent_.begin();
      pages.push_back({{handle, count}, nullptr});
      lent_.erase(lent_.begin());
    }
    store_.put(pages);
    lent_pages_ -= count_pages(pages);
    idle_ += count_pages(pages);
  }
  void operator()(const TrimPages& i) {
    const std::size_t released = store_.trim(i.count);
    expect(released <= std::min(i.count, idle_), "no more than is asked for");
    expect(released == idle_ || released + largest_ > i.count || fault_struck(),
           "as much as whole handles allow");
    idle_ -= released;
  }
  void operator()(const LimitPages& i) {
    limit_ = i.count;
    store_.set_limit(i.count == 0 ? PageStore::kNoLimit : i.count * kPageBytes);
  }
  void operator()(const FailCall& i) {
    FaultyApi::fail_only(i.release ? "cuMemRelease" : "cuMemCreate", i.call,
                         i.out_of_memory ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_UNKNOWN);
  }

 private:
  static void expect(bool condition, const char* what) {
    if (!condition) {
      throw ModelError(std::string("not so: ") + what);
    }
  }
  static bool fault_struck() { return *FaultyApi::failed() != '\0'; }
  std::size_t held() const { return lent_pages_ + idle_; }
  void lend(const Handles& handles) {
    lent_pages_ += count_pages(handles);
    for (const StoredHandle& handle : handles) {
      expect(lent_.emplace(handle.range.handle, handle.range.pages).second,
             "a handle is lent once");
      largest_ = std::max(largest_, handle.range.pages);
    }
  }
  void take(std::size_t wanted, Fit fit) {
    const bool exact = fit == Fit::kExactly;
    const bool over_limit = limit_ != 0 && lent_pages_ + wanted > limit_;
    const bool full = lent_pages_ + wanted > kPages;
    const PageCounts before = store_.counts();
    Handles pages;
    TakeResult result = TakeResult::kOk;
    try {
      result = testing::take(store_, wanted, fit, pages);
    } catch (const DriverError&) {
      expect(fault_struck() && pages.empty(), "a fault, and nothing taken");
      after_failed_take(exact);
      return;
    }
    const std::size_t created = store_.counts().created - before.created;
    const std::size_t released = store_.counts().released - before.released;
    switch (result) {
      case TakeResult::kOk:
        expect(exact ? count_pages(pages) == wanted : count_pages(pages) >= wanted, "all of them");
        expect(count_pages(pages) < wanted + largest_ || created == 0,
               "no handle more than it takes");
        expect(exact || (released == 0 && created == wanted - std::min(wanted, idle_)),
               "idle ones first");
        expect(created == 0 || !over_limit, "room for the new pages");
        idle_ += created;
        idle_ -= released + count_pages(pages);
        lend(pages);
        break;
      case TakeResult::kOverLimit:
        expect((over_limit || (exact && fault_struck())) && pages.empty(), "over the limit");
        after_failed_take(exact);
        break;
      case TakeResult::kTooFew:
      case TakeResult::kRejected:
        expect(false, "no rejection limit was set");
        break;
      case TakeResult::kOutOfMemory:
        expect((full || fault_struck()) && pages.empty(), "a full device");
        after_failed_take(exact);
        break;
    }
  }
  // Created handles that could not be released are idle now; an exact fit may have released handles
  // that were too large.
  void after_failed_take(bool exact) {
    const std::size_t idle = store_.counts().idle;
    expect(idle == idle_ || (fault_struck() && idle > idle_) || (exact && idle < idle_),
           "created handles are released");
    idle_ = idle;
  }
  void check() {
    const PageCounts counts = store_.counts();
    expect(counts.held == held() && counts.idle == idle_, "held == idle + lent");
    expect(counts.created - counts.released == counts.held, "created and released");
    expect(counts.peak_held >= counts.held, "the peak");
    expect(SimGpu::used_pages() == held(), "the device's pages are the store's");
  }

  SimGpu gpu_{kPages, SimGpu::kEager};
  Driver driver_{FaultyApi::table(), 0};
  EventPool events_{driver_};
  CaptureCount captures_;
  DeviceTimeline timeline_{driver_, events_, captures_, nullptr};
  PageStore store_;
  std::map<PageHandle, std::size_t> lent_;  // the pages of each
  std::size_t lent_pages_ = 0;
  std::size_t idle_ = 0;
  std::size_t largest_ = 1;  // pages of a handle seen so far
  std::size_t limit_ = 0;
};

inline std::string to_code(const std::vector<StoreInstruction>& program) {
  std::ostringstream out;
  struct Print {
    std::ostringstream& out;
    void operator()(const TakePages& i) const { out << "TakePages{" << i.count << "}"; }
    void operator()(const TakePagesExactly& i) const {
      out << "TakePagesExactly{" << i.count << "}";
    }
    void operator()(const TakeIdlePages& i) const { out << "TakeIdlePages{" << i.count << "}"; }
    void operator()(const PutPages& i) const { out << "PutPages{" << i.count << "}"; }
    void operator()(const TrimPages& i) const { out << "TrimPages{" << i.count << "}"; }
    void operator()(const LimitPages& i) const { out << "LimitPages{" << i.count << "}"; }
    void operator()(const FailCall& i) const {
      out << std::boolalpha << "FailCall{" << i.release << ", " << i.call << ", " << i.out_of_memory
          << "}";
    }
  };
  for (const StoreInstruction& instruction : program) {
    out << "    ";
    std::visit(Print{out}, instruction);
    out << ",\n";
  }
  return "run_store_program({\n" + out.str() + "}, handles);\n";
}

// Performs a program under these rules; a failure is thrown again with the program up to it.
inline void run_store_program(const std::vector<StoreInstruction>& program,
                              const HandleRules& handles) {
  std::size_t done = 0;
  try {
    StoreModel model(handles);
    for (const StoreInstruction& instruction : program) {
      ++done;
      model.perform(instruction);
    }
    model.finish();
  } catch (const std::exception& error) {
    const std::vector<StoreInstruction> so_far(program.begin(),
                                               program.begin() + static_cast<std::ptrdiff_t>(done));
    throw ModelError(std::string(error.what()) + "\nafter\n" + to_code(so_far));
  }
}

inline std::vector<StoreInstruction> decode_store(const std::uint8_t* data, std::size_t size) {
  ByteReader in(data, size);
  std::vector<StoreInstruction> program;
  while (!in.empty()) {
    const unsigned kind = in.below(16);
    const std::size_t count = in.below(StoreModel::kPages + 3);
    if (kind < 4) {
      program.push_back(TakePages{count});
    } else if (kind < 5) {
      program.push_back(TakePagesExactly{count});
    } else if (kind < 7) {
      program.push_back(TakeIdlePages{count});
    } else if (kind < 11) {
      program.push_back(PutPages{count});
    } else if (kind < 13) {
      program.push_back(TrimPages{count});
    } else if (kind < 14) {
      program.push_back(LimitPages{count});
    } else {
      program.push_back(FailCall{in.below(2) == 0, 1 + in.below(4), in.below(2) == 0});
    }
  }
  return program;
}

}  // namespace ferro::testing
