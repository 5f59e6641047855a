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

// The answer of the server; empty if there is none within 100 ms.
std::string ask() {
  const FileDescriptor connection = open_unix_socket(0);
  if (!connect_abstract(connection.get(), status_server_name())) {
    return "refused";
  }
  pollfd answer{connection.get(), POLLIN, 0};
  if (poll(&answer, 1, 100) != 1) {
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
  ASSERT_EQ(ask(), "told");
  is_slow = true;
  std::thread asking([] { EXPECT_EQ(ask(), ""); });
  while (!is_answering) {
    std::this_thread::yield();
  }
  std::thread ending([] { server.stop(); });
  asking.join();
  EXPECT_TRUE(is_answering);
  is_slow = false;
  ending.join();
  EXPECT_FALSE(is_answering);
  EXPECT_EQ(ask(), "");
}

}  // namespace status_server_test
}  // namespace ferro
