// The byte string of a handle: the part that native reads, and the part that only ferro_alloc
// reads.
#include "ferro/adapter/ipc/ipc_handle.h"

#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

namespace ferro {
namespace ipc_handle_test {

IpcHandle sample() {
  IpcHandle handle;
  handle.from = {4711, 123456, 4026531836};
  handle.units = {{2 << 20, 17, 3}, {2 << 20, 18, 4}};
  handle.server = {"ferro_alloc-4711-99", random_key(), random_key()};
  return handle;
}

class IpcHandleTest : public ::testing::TestWithParam<IpcFormat> {};

INSTANTIATE_TEST_SUITE_P(Formats, IpcHandleTest,
                         ::testing::Values(IpcFormat::kFirst, IpcFormat::kWithHandleType));

TEST_P(IpcHandleTest, IsReadAsItWasWritten) {
  const IpcHandle handle = sample();
  const IpcHandle read = decode(encode(handle, GetParam()));
  EXPECT_EQ(read.kind, IpcKind::kDescriptors);
  EXPECT_EQ(read.from.process, handle.from.process);
  EXPECT_EQ(read.from.started, handle.from.started);
  EXPECT_EQ(read.from.pid_namespace, handle.from.pid_namespace);
  EXPECT_EQ(read.server.name, handle.server.name);
  EXPECT_EQ(read.server.request_key, handle.server.request_key);
  EXPECT_EQ(read.server.answer_key, handle.server.answer_key);
  ASSERT_EQ(read.units.size(), 2U);
  EXPECT_EQ(read.units[1].descriptor, 18);
  EXPECT_EQ(read.units[1].id, 4U);
  EXPECT_EQ(read.units[1].bytes, 2U << 20);
}

TEST_P(IpcHandleTest, BeginsAsPyTorchsOwn) {
  const std::string text = encode(sample(), GetParam());
  EXPECT_EQ(text.substr(0, 2), std::string({static_cast<char>(GetParam()), 'e'}));
  int process = 0;
  std::memcpy(&process, text.data() + 2, sizeof(process));
  EXPECT_EQ(process, 4711);
  // Since 2.13 PyTorch's own has two more numbers of four bytes.
  const std::size_t descriptors = GetParam() == IpcFormat::kFirst ? 26 : 34;
  int first = 0;
  std::memcpy(&first, text.data() + descriptors, sizeof(first));
  EXPECT_EQ(first, 17);
}

TEST_P(IpcHandleTest, IsRefusedByPyTorchsOwnWhereItFindsNoDescriptor) {
  IpcHandle handle = sample();
  EXPECT_EQ(encode(handle, GetParam())[1], 'e');
  handle.units[1].descriptor = -1;
  const std::string text = encode(handle, GetParam());
  EXPECT_EQ(text[1], 'f');
  const IpcHandle read = decode(text);
  EXPECT_EQ(read.units[0].descriptor, 17);
  EXPECT_EQ(read.units[1].descriptor, -1);
  EXPECT_EQ(read.units[1].id, 4U);
}

TEST_P(IpcHandleTest, OfTheSameBlockIsTheSame) {
  const IpcHandle handle = sample();
  EXPECT_EQ(encode(handle, GetParam()), encode(handle, GetParam()));
}

TEST_P(IpcHandleTest, WhatEndsTooEarlyIsRefused) {
  const std::string text = encode(sample(), GetParam());
  // The part that native does not read begins after the descriptors.
  const std::size_t note = text.find("ferroip2");
  ASSERT_NE(note, std::string::npos);
  for (std::size_t size = 0; size < text.size(); ++size) {
    if (size == 64 || (size >= note && size < note + 8)) {
      continue;  // a handle of CUDA's, and one of native's
    }
    EXPECT_THROW((void)decode(text.substr(0, size)), std::invalid_argument) << size;
  }
}

// A handle that PyTorch 2.15 wrote for 30 MiB in two segments, including the bytes of the padding.
TEST(IpcHandle, OfPyTorch215IsRead) {
  const char written[] =
      "\3e\x99W\0\0\0\0\0\0\0\0@\1\0\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\x8c\x7f\0\0\4\0\0\0\6\0\0\0";
  const IpcHandle read = decode(std::string(written, sizeof(written) - 1));
  EXPECT_EQ(read.kind, IpcKind::kDescriptors);
  EXPECT_EQ(read.from.process, 0x5799);
  EXPECT_EQ(read.segment_bytes, 20U << 20);
  ASSERT_EQ(read.units.size(), 2U);
  EXPECT_EQ(read.units[0].descriptor, 4);
  EXPECT_EQ(read.units[1].descriptor, 6);
}

TEST(IpcHandle, OfALaterFormatIsRefused) {
  std::string text = encode(sample(), IpcFormat::kWithHandleType);
  text[0] = 4;
  EXPECT_THROW((void)decode(text), std::invalid_argument);
}

TEST(IpcHandle, OfAnUnknownKindOfHandleIsRefused) {
  std::string text = encode(sample(), IpcFormat::kWithHandleType);
  text[26] = 3;
  EXPECT_THROW((void)decode(text), std::invalid_argument);
}

}  // namespace ipc_handle_test
}  // namespace ferro
