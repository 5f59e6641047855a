// The byte string of a handle: what native reads of it, and what only ferro_alloc reads.
#include "ferro/adapter/sharing/ipc_handle.h"

#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>

namespace ferro {
namespace {

IpcHandle sample() {
  IpcHandle handle;
  handle.from = {4711, 123456, 4026531836};
  handle.units = {{2 << 20, 17, 3}, {2 << 20, 18, 4}};
  handle.server = {"ferro_alloc-4711-99", random_key(), random_key()};
  return handle;
}

TEST(IpcHandle, IsReadAsItWasWritten) {
  const IpcHandle handle = sample();
  const IpcHandle read = decode(encode(handle));
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

TEST(IpcHandle, BeginsAsPyTorchsOwn) {
  const std::string text = encode(sample());
  EXPECT_EQ(text.substr(0, 2), "\2e");
  int process = 0;
  std::memcpy(&process, text.data() + 2, sizeof(process));
  EXPECT_EQ(process, 4711);
}

TEST(IpcHandle, OfTheSameBlockIsTheSame) {
  const IpcHandle handle = sample();
  EXPECT_EQ(encode(handle), encode(handle));
}

TEST(IpcHandle, WhatEndsTooEarlyIsRefused) {
  const std::string text = encode(sample());
  // Behind the descriptors begins what native does not read.
  const std::size_t note = text.find("ferroip2");
  ASSERT_NE(note, std::string::npos);
  for (std::size_t size = 0; size < text.size(); ++size) {
    if (size == 64 || (size >= note && size < note + 8)) {
      continue;  // a handle of CUDA's, and one of native's
    }
    EXPECT_THROW((void)decode(text.substr(0, size)), std::invalid_argument) << size;
  }
}

}  // namespace
}  // namespace ferro
