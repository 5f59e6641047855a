#include "ferro/adapter/ipc/status_server.h"

#include "ferro/adapter/ipc/file_descriptor.h"
#include "ferro/adapter/ipc/unix_socket.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <thread>

namespace ferro {
namespace status_server_test {

constexpr std::chrono::milliseconds kLong = std::chrono::minutes(1);
constexpr std::chrono::milliseconds kShort{100};

// The answer of the server; empty if there is none within that time.
std::string ask(std::chrono::milliseconds at_most) {
  const FileDescriptor connection = open_unix_socket(0);
  if (!connect_abstract(connection.get(), status_server_name())) {
    return "refused";
  }
  pollfd answer{connection.get(), POLLIN, 0};
  if (poll(&answer, 1, static_cast<int>(at_most.count())) != 1) {
    return "";
  }
  std::array<std::byte, 64> text{};
  const ReceivedMessage received = receive_message(connection.get(), text);
  return {reinterpret_cast<const char*>(text.data()), static_cast<std::size_t>(received.size)};
}

TEST(StatusServer, ItsEndWaitsForAnAnswerAndLetsNoneFollow) {
  static std::atomic<bool> is_answering{false};
  static std::atomic<bool> is_slow{false};
  static StatusServer server([] {
    is_answering = true;
    while (is_slow) {
      std::this_thread::yield();
    }
    is_answering = false;
    return std::string("told");
  });
  ASSERT_TRUE(server.start());
  ASSERT_EQ(ask(kLong), "told");
  is_slow = true;
  std::thread asking([] { EXPECT_EQ(ask(kShort), ""); });
  while (!is_answering) {
    std::this_thread::yield();
  }
  std::thread ending([] { server.stop(); });
  asking.join();
  EXPECT_TRUE(is_answering);
  is_slow = false;
  ending.join();
  EXPECT_FALSE(is_answering);
  EXPECT_EQ(ask(kShort), "");
}

}  // namespace status_server_test
}  // namespace ferro
