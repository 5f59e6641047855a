#include "ferro/core/sharing/exports.h"
#include "support/descriptor_limit.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

namespace ferro {
namespace export_table_test {

bool is_open(int descriptor) { return fcntl(descriptor, F_GETFD) >= 0; }

ino_t file_behind(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

TEST(ExportTable, ACopyIsTheCallersOwn) {
  ExportTable table;
  const int shared = memfd_create("shared", MFD_CLOEXEC);
  const std::uint64_t id = table.add(shared);
  int copy = -1;
  ASSERT_EQ(table.duplicate(id, &copy), DuplicateResult::kOk);
  EXPECT_NE(copy, shared);
  EXPECT_EQ(file_behind(copy), file_behind(shared));
  EXPECT_EQ(fcntl(copy, F_GETFD), FD_CLOEXEC);
  table.retire(id);
  EXPECT_FALSE(is_open(shared));
  EXPECT_TRUE(is_open(copy));
  close(copy);
}

TEST(ExportTable, WhatIsGoneAndWhatHasNoRoomAreTwoThings) {
  ExportTable table;
  const std::uint64_t id = table.add(memfd_create("shared", MFD_CLOEXEC));
  int copy = -1;
  {
    const DescriptorLimit limit(next_descriptor());
    ASSERT_TRUE(limit.is_set());
    EXPECT_EQ(table.duplicate(id, &copy), DuplicateResult::kNoDescriptors);
    EXPECT_EQ(table.duplicate(id + 1, &copy), DuplicateResult::kRetired);
  }
  ASSERT_EQ(table.duplicate(id, &copy), DuplicateResult::kOk);
  close(copy);
  table.retire(id);
  EXPECT_EQ(table.duplicate(id, &copy), DuplicateResult::kRetired);
  EXPECT_EQ(table.duplicate(0, &copy), DuplicateResult::kRetired);
  EXPECT_EQ(table.count(), 0U);
}

}  // namespace export_table_test
}  // namespace ferro
