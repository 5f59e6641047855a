// A naive model of the page store beside the real one: which pages are lent, how many are idle.
#pragma once

#include "ferro/core/page_store.h"
#include "ferro/driver/error.h"
#include "support/faulty_api.h"
#include "support/instructions.h"
#include "support/sim_gpu.h"
#include "support/traffic.h"

#include <algorithm>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace ferro::testing {

struct TakePages {
  std::size_t count;
};
struct TakeIdlePages {
  std::size_t count;
};
struct PutPages {  // at most what is lent
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
using StoreInstruction =
    std::variant<TakePages, TakeIdlePages, PutPages, TrimPages, LimitPages, FailCall>;

class StoreModel {
 public:
  static constexpr std::size_t kPages = 20;

  StoreModel() { FaultyApi::reset(); }
  ~StoreModel() { FaultyApi::reset(); }

  void perform(const StoreInstruction& instruction) {
    std::visit([this](const auto& i) { (*this)(i); }, instruction);
    check();
  }
  void finish() {
    FaultyApi::reset();
    perform(PutPages{lent_.size()});
    perform(TrimPages{kPages});
    expect(held() == 0, "nothing is left");
  }

  void operator()(const TakePages& i) {
    const std::size_t missing = i.count - std::min(i.count, idle_);
    std::vector<PageHandle> pages;
    TakeResult result = TakeResult::kOk;
    try {
      result = store_.take(i.count, pages);
    } catch (const DriverError&) {
      expect(fault_struck() && pages.empty(), "a fault, and nothing taken");
      after_failed_take();
      return;
    }
    const bool over_limit = limit_ != 0 && missing != 0 && held() + missing > limit_;
    const bool full = held() + missing > kPages;
    switch (result) {
      case TakeResult::kOk:
        expect(!full && (!over_limit || missing == 0), "room for the new pages");
        expect(pages.size() == i.count, "all of them");
        for (const PageHandle page : pages) {
          expect(lent_.insert(page).second, "a page is lent once");
        }
        idle_ -= std::min(idle_, i.count);
        break;
      case TakeResult::kOverLimit:
        expect(limit_ != 0 && held() + missing > limit_ && pages.empty(), "over the limit");
        break;
      case TakeResult::kRejected:
        expect(false, "no rejection limit was set");
        break;
      case TakeResult::kOutOfMemory:
        expect((full || fault_struck()) && pages.empty(), "a full device");
        after_failed_take();
        break;
    }
  }
  void operator()(const TakeIdlePages& i) {
    std::vector<PageHandle> pages;
    const bool taken = store_.take_idle(i.count, pages);
    expect(taken == (i.count <= idle_) && pages.size() == (taken ? i.count : 0), "all or none");
    for (const PageHandle page : pages) {
      expect(lent_.insert(page).second, "a page is lent once");
    }
    idle_ -= pages.size();
  }
  void operator()(const PutPages& i) {
    std::vector<PageHandle> pages;
    while (pages.size() < i.count && !lent_.empty()) {
      pages.push_back(*lent_.begin());
      lent_.erase(lent_.begin());
    }
    store_.put(pages);
    idle_ += pages.size();
  }
  void operator()(const TrimPages& i) {
    const std::size_t released = store_.trim(i.count);
    expect(released <= std::min(i.count, idle_), "no more than is idle");
    expect(released == std::min(i.count, idle_) || fault_struck(), "all that is asked for");
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
  std::size_t held() const { return lent_.size() + idle_; }
  // A page that was created and could not be released again is idle now.
  void after_failed_take() {
    const std::size_t idle = store_.counts().idle;
    expect(idle == idle_ || (fault_struck() && idle > idle_), "what was created is released");
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
  PageStore store_{driver_, kPageBytes};
  std::set<PageHandle> lent_;
  std::size_t idle_ = 0;
  std::size_t limit_ = 0;
};

inline std::string to_code(const std::vector<StoreInstruction>& program) {
  std::ostringstream out;
  struct Print {
    std::ostringstream& out;
    void operator()(const TakePages& i) const { out << "TakePages{" << i.count << "}"; }
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
  return "run_store_program({\n" + out.str() + "});\n";
}

// Performs a program; a failure is thrown again with the program up to it.
inline void run_store_program(const std::vector<StoreInstruction>& program) {
  std::size_t done = 0;
  try {
    StoreModel model;
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
    if (kind < 5) {
      program.push_back(TakePages{count});
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
