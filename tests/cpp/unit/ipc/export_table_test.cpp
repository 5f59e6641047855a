// The ids of exported handles, and their descriptors: kept, or made on request.
#include "ferro/core/ipc/exports.h"
#include "ferro/driver/error.h"
#include "support/descriptor_limit.h"
#include "support/faulty_api.h"
#include "support/sim_gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fcntl.h>
#include <sys/stat.h>
#include <thread>

namespace ferro {
namespace export_table_test {

using testing::FaultyApi;
using testing::kPageBytes;
using testing::SimGpu;

bool is_open(int descriptor) { return fcntl(descriptor, F_GETFD) >= 0; }

ino_t file_behind(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

class ExportTableTest : public ::testing::Test {
 protected:
  ExportTableTest() : gpu_(600, SimGpu::kManual) { FaultyApi::reset(); }
  ~ExportTableTest() override {
    FaultyApi::reset();
    for (const PageHandle handle : handles_) {
      driver_.release(handle);
    }
  }

  std::vector<ExportTable::Entry> add(std::size_t count) {
    std::vector<PageHandle> handles;
    for (std::size_t i = 0; i < count; ++i) {
      handles.push_back(driver_.create(kPageBytes).value());
    }
    handles_.insert(handles_.end(), handles.begin(), handles.end());
    return table_.add(handles);
  }
  // Adds entries without kept descriptors: the limit is reached.
  std::vector<ExportTable::Entry> add_beyond_the_limit(std::size_t count) {
    const DescriptorLimit limit(200);
    EXPECT_TRUE(limit.is_set());
    while (is_open(add(1)[0].descriptor)) {
    }
    return add(count);
  }
  std::uint64_t exported() { return driver_.calls().exported; }

  SimGpu gpu_;
  Driver driver_{FaultyApi::table(), 0};
  ExportTable table_{driver_};
  std::vector<PageHandle> handles_;
};

TEST_F(ExportTableTest, ACopyIsTheCallersOwn) {
  const ExportTable::Entry shared = add(1)[0];
  int copy = -1;
  ASSERT_EQ(table_.duplicate(shared.id, &copy), DuplicateResult::kOk);
  EXPECT_NE(copy, shared.descriptor);
  EXPECT_EQ(file_behind(copy), file_behind(shared.descriptor));
  EXPECT_EQ(fcntl(copy, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(exported(), 1U);
  table_.retire(shared.id);
  EXPECT_FALSE(is_open(shared.descriptor));
  EXPECT_TRUE(is_open(copy));
  close(copy);
}

// The program has closed its standard input.
TEST_F(ExportTableTest, ACopyMayHaveTheNumberZero) {
  const std::uint64_t id = add(1)[0].id;
  const int input = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  close(STDIN_FILENO);
  int copy = -1;
  const DuplicateResult result = table_.duplicate(id, &copy);
  EXPECT_EQ(result, DuplicateResult::kOk);
  EXPECT_EQ(copy, STDIN_FILENO);
  close(copy);
  if (input >= 0) {
    dup2(input, STDIN_FILENO);
    close(input);
  }
}

TEST_F(ExportTableTest, RetiredUnitsAndLackOfDescriptorsAreDistinguished) {
  const std::uint64_t id = add(1)[0].id;
  int copy = -1;
  {
    const DescriptorLimit limit(next_descriptor());
    ASSERT_TRUE(limit.is_set());
    EXPECT_EQ(table_.duplicate(id, &copy), DuplicateResult::kNoDescriptors);
    EXPECT_EQ(table_.duplicate(id + 1, &copy), DuplicateResult::kRetired);
  }
  ASSERT_EQ(table_.duplicate(id, &copy), DuplicateResult::kOk);
  close(copy);
  table_.retire(id);
  EXPECT_EQ(table_.duplicate(id, &copy), DuplicateResult::kRetired);
  EXPECT_EQ(table_.duplicate(0, &copy), DuplicateResult::kRetired);
  EXPECT_EQ(table_.count(), 0U);
}

TEST_F(ExportTableTest, DescriptorsAreKeptUpToHalfOfTheLimitForAllHandlesOrNone) {
  const DescriptorLimit limit(1000);
  ASSERT_TRUE(limit.is_set());
  const auto all_kept = [](const std::vector<ExportTable::Entry>& entries, bool kept) {
    return std::ranges::all_of(entries, [&](const ExportTable::Entry& entry) {
      return is_open(entry.descriptor) == kept;
    });
  };
  std::vector<std::uint64_t> kept;
  for (auto entry = add(1)[0]; is_open(entry.descriptor); entry = add(1)[0]) {
    kept.push_back(entry.id);
  }
  EXPECT_LE(kept.size(), 500U) << "other tables may keep some";
  EXPECT_EQ(exported(), kept.size());
  for (std::size_t i = 0; i < 10; ++i) {
    table_.retire(kept[i]);
  }
  EXPECT_TRUE(all_kept(add(11), false));
  EXPECT_TRUE(all_kept(add(10), true)) << "retired entries make room";
  EXPECT_TRUE(all_kept(add(1), false));
}

TEST_F(ExportTableTest, NoDescriptorIsKeptWhereTheProgramUsesThem) {
  std::vector<ExportTable::Entry> added;
  std::vector<int> used(100);
  std::ranges::generate(used, [] { return dup(STDIN_FILENO); });
  {
    const DescriptorLimit limit(limit_with_room_for(2));
    ASSERT_TRUE(limit.is_set());
    added = add(3);
  }
  std::ranges::for_each(used, close);
  EXPECT_EQ(exported(), 3U);
  ASSERT_EQ(added.size(), 3U);
  for (const ExportTable::Entry& entry : added) {
    EXPECT_EQ(entry.descriptor, -1);
    int copy = -1;
    EXPECT_EQ(table_.duplicate(entry.id, &copy), DuplicateResult::kOk);
    close(copy);
  }
}

TEST_F(ExportTableTest, ADescriptorThatIsNotKeptIsMadeForEachCaller) {
  const ExportTable::Entry entry = add_beyond_the_limit(1)[0];
  const std::uint64_t kept = exported();
  EXPECT_EQ(entry.descriptor, -1);
  int first = -1;
  int second = -1;
  ASSERT_EQ(table_.duplicate(entry.id, &first), DuplicateResult::kOk);
  ASSERT_EQ(table_.duplicate(entry.id, &second), DuplicateResult::kOk);
  EXPECT_EQ(exported() - kept, 2U);
  EXPECT_EQ(file_behind(first), file_behind(second));
  close(first);
  close(second);
  {
    const DescriptorLimit limit(next_descriptor());
    ASSERT_TRUE(limit.is_set());
    EXPECT_EQ(table_.duplicate(entry.id, &first), DuplicateResult::kNoDescriptors);
  }
  FaultyApi::fail_only("cuMemExportToShareableHandle", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(table_.duplicate(entry.id, &first), DuplicateResult::kRefused);
  table_.retire(entry.id);
  const std::uint64_t before = exported();
  EXPECT_EQ(table_.duplicate(entry.id, &first), DuplicateResult::kRetired);
  EXPECT_EQ(exported(), before);
}

TEST_F(ExportTableTest, ARefusalOfTheDriverChangesNothing) {
  const DescriptorLimit limit(2000);  // above it are those of the simulator
  ASSERT_TRUE(limit.is_set());
  const rlim_t next = next_descriptor();
  for (const std::uint64_t refused : {1U, 3U}) {
    FaultyApi::fail_only("cuMemExportToShareableHandle", refused, CUDA_ERROR_UNKNOWN);
    EXPECT_THROW((void)add(5), DriverError);
    EXPECT_EQ(table_.count(), 0U);
    EXPECT_EQ(next_descriptor(), next);
  }
}

// The handle is released right after it is retired, and its number serves another.
TEST_F(ExportTableTest, NoHandleIsExportedOnceItIsRetired) {
  const std::vector<ExportTable::Entry> entries = add_beyond_the_limit(40);
  ASSERT_EQ(entries[0].descriptor, -1);
  std::thread asker([&] {
    for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
      DuplicateResult result = DuplicateResult::kOk;
      while (result == DuplicateResult::kOk) {
        int made = -1;
        result = table_.duplicate(entry->id, &made);
        if (made >= 0) {
          close(made);
        }
      }
      EXPECT_EQ(result, DuplicateResult::kRetired) << "the driver would refuse a released handle";
    }
  });
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    table_.retire(entry->id);
    EXPECT_TRUE(driver_.release(handles_.back()));
    handles_.pop_back();
  }
  asker.join();
}

}  // namespace export_table_test
}  // namespace ferro
