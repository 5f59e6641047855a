// The server of descriptors across fork(), ended senders, and processes that take the place of a
// sender.
#include "ferro/adapter/ipc/ipc_handle.h"
#include "ferro/adapter/ipc/peer_process.h"
#include "support/child_process.h"
#include "support/descriptor_limit.h"
#include "support/descriptor_peers.h"
#include "support/sanitizers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>

namespace ferro {
namespace sharing_processes_test {

using std::string;

bool says(const string& text, const string& part) { return text.find(part) != string::npos; }

class SharingProcesses : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kThreadSanitizer) {
      GTEST_SKIP() << "the thread sanitizer forbids threads in a child of fork()";
    }
  }
};

// A handle of one piece with this id. No test uses the number of its descriptor.
IpcHandle handle_of(const ServerAddress& address, std::uint64_t id) {
  IpcHandle handle;
  handle.from = own_process();
  handle.units.push_back({4096, -1, id});
  handle.server = address;
  return handle;
}

std::vector<std::uint64_t> ids_received(const IpcHandle& handle, PeerProcesses& peers) {
  std::vector<std::uint64_t> ids;
  receive_descriptors(handle, peers, [&](const IpcUnit& unit, const FileDescriptor& file) {
    EXPECT_EQ(id_in(file), unit.id);
    ids.push_back(unit.id);
  });
  return ids;
}

string error_of_receiving(const IpcHandle& handle) {
  PeerProcesses peers;
  return error_of([&] { (void)ids_received(handle, peers); });
}

// A sender that shares its piece 1.
string share() { return encode(handle_of(server().address(), 1), IpcFormat::kFirst); }

TEST_F(SharingProcesses, AHandleIsOpenedOverTheSocketOfAnotherProcess) {
  const ChildProcess sender(share);
  const IpcHandle handle = decode(sender.read());
  PeerProcesses peers;
  EXPECT_EQ(ids_received(handle, peers), std::vector<std::uint64_t>{1});
}

// A sender that may open no more than `spare` descriptors.
string share_with_few(std::size_t spare) {
  string text = share();
  const rlimit limit{limit_with_room_for(spare), 4096};
  setrlimit(RLIMIT_NOFILE, &limit);
  return text;
}

// The handle that the sender shares, with all pieces.
IpcHandle handle_of_many(const ChildProcess& sender) {
  IpcHandle handle = decode(sender.read());
  for (std::uint64_t id = 2; id <= kKnownIds; ++id) {
    handle.units.push_back({4096, -1, id});
  }
  return handle;
}

TEST_F(SharingProcesses, MoreDescriptorsThanEitherProcessMayOpenComePartByPart) {
  for (const std::size_t spare : {2000, 20, 3, 2}) {
    const ChildProcess sender([spare] { return share_with_few(spare); });
    const IpcHandle handle = handle_of_many(sender);
    PeerProcesses peers;
    EXPECT_EQ(ids_received(handle, peers).size(), kKnownIds) << spare;
  }
  const ChildProcess sender(share);
  const IpcHandle handle = handle_of_many(sender);
  PeerProcesses peers;
  EXPECT_TRUE(peers.is_running(handle.from)) << "it takes a descriptor";
  for (const std::size_t spare : {40, 9, 2}) {
    const DescriptorLimit limit(limit_with_room_for(spare));
    ASSERT_TRUE(limit.is_set());
    EXPECT_EQ(ids_received(handle, peers).size(), kKnownIds) << spare;
  }
  const auto receive = [&] {
    const DescriptorLimit limit(limit_with_room_for(1));
    ASSERT_TRUE(limit.is_set());
    (void)ids_received(handle, peers);
  };
  EXPECT_EQ(error_of(receive), "this process has no room for 1 more file descriptors (ulimit -n)");
}

// The thread was making a descriptor then, and continued in a driver that had ended.
TEST_F(SharingProcesses, TheEndOfTheProcessWaitsForAnAnswer) {
  const ChildProcess sender([] {
    static std::atomic<bool> is_making{false};
    // The driver registers its exit handler first.
    std::atexit([] { _exit(is_making ? 1 : 0); });
    static DescriptorServer slow([](std::uint64_t id, FileDescriptor* found) {
      is_making = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      *found = FileDescriptor(file_of(id));
      is_making = false;
      return DescriptorStatus::kSent;
    });
    std::thread([] {
      while (!is_making) {
        std::this_thread::yield();
      }
      std::exit(0);
    }).detach();
    return encode(handle_of(slow.address(), 1), IpcFormat::kFirst);
  });
  EXPECT_EQ(error_of_receiving(decode(sender.read())), "");
  int status = -1;
  EXPECT_EQ(waitpid(sender.process(), &status, 0), sender.process());
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_F(SharingProcesses, OfAnotherPidNamespaceTheKeysDecide) {
  const ChildProcess sender(share);
  IpcHandle handle = decode(sender.read());
  handle.from.pid_namespace += 1;
  handle.from.process = 1;
  PeerProcesses peers;
  EXPECT_EQ(ids_received(handle, peers).at(0), 1U);
  handle.server.answer_key[0] ^= std::byte{1};
  EXPECT_TRUE(says(error_of_receiving(handle), "is not the one that shared it"));
}

TEST_F(SharingProcesses, AnEndedSenderIsReported) {
  const ChildProcess sender(share);
  const IpcHandle handle = decode(sender.read());
  PeerProcesses peers;
  EXPECT_EQ(ids_received(handle, peers).size(), 1U);
  sender.end();
  // Before and after a wait for the process; with peers that knew it, and with peers that did not.
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW((void)ids_received(handle, peers), ProcessEnded);
    EXPECT_EQ(error_of_receiving(handle), "the process that shared it has ended");
    EXPECT_FALSE(peers.is_running(handle.from));
    sender.wait();
  }
}

TEST_F(SharingProcesses, ASenderOfAnotherNamespaceThatHasEndedRefusesTheConnection) {
  const ChildProcess sender(share);
  IpcHandle handle = decode(sender.read());
  handle.from.pid_namespace += 1;
  sender.end();
  EXPECT_TRUE(says(error_of_receiving(handle), "the process that shared it has ended"));
}

TEST_F(SharingProcesses, ASenderThatEndsWhileItIsAskedIsAnErrorAtOnce) {
  const ChildProcess sender(share);
  const IpcHandle handle = decode(sender.read());
  DescriptorClient client(handle.server);
  sender.end();
  EXPECT_TRUE(says(error_of([&] { (void)client.request(std::array<std::uint64_t, 1>{1}); }),
                   "closed without an answer"));
}

TEST_F(SharingProcesses, AStoppedSenderIsAnErrorWhenPatienceEnds) {
  const ChildProcess sender(share);
  const ChildProcess other(share);
  const ServerAddress address = decode(sender.read()).server;
  const IpcHandle another = decode(other.read());
  EXPECT_EQ(ask_for(address, 1), 1U);
  kill(sender.process(), SIGSTOP);
  sender.wait_until_stopped();
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPatience{1200};
  const Clock::time_point begin = Clock::now();
  std::atomic<bool> over = false;
  std::thread asker([&] {
    const string error = error_of(
        [&] { DescriptorClient(address, kPatience).request(std::array<std::uint64_t, 1>{1}); });
    EXPECT_EQ(error,
              "no answer within 1 s; the process that shared it is stopped, or may open no more "
              "file descriptors (ulimit -n)");
    over = true;
  });
  // A request to another process meanwhile does not wait.
  PeerProcesses peers;
  EXPECT_EQ(ids_received(another, peers).at(0), 1U);
  EXPECT_FALSE(over);
  asker.join();
  EXPECT_GE(Clock::now() - begin, kPatience);
  EXPECT_LT(Clock::now() - begin, 8 * kPatience);
  // Once it continues, it answers requests from the time when it was stopped.
  DescriptorClient late(address);
  kill(sender.process(), SIGCONT);
  EXPECT_EQ(id_in(late.request(std::array<std::uint64_t, 1>{1}).at(0)), 1U);
}

TEST_F(SharingProcesses, AProcessThatReusesTheNumberOrNameOfASenderIsRefused) {
  const ChildProcess sender(share);
  const IpcHandle theirs = decode(sender.read());
  // The sender runs, but this process listens under its name.
  IpcHandle forged = handle_of(server().address(), 1);
  forged.from = theirs.from;
  EXPECT_TRUE(says(error_of_receiving(forged), "is not the one that shared it"));
  // Another process has reused the process id since.
  IpcHandle late = theirs;
  late.from.started -= 1;
  EXPECT_EQ(error_of_receiving(late), "the process that shared it has ended");
  // A process that takes the name does not know the key, and learns nothing: the client notices
  // that the sender has ended.
  sender.end();
  const FileDescriptor squatter = open_unix_socket(0);
  ASSERT_TRUE(bind_abstract(squatter.get(), theirs.server.name));
  ASSERT_EQ(listen(squatter.get(), 4), 0);
  EXPECT_EQ(error_of_receiving(theirs), "the process that shared it has ended");
  DescriptorClient client(theirs.server);
  const FileDescriptor connection(accept4(squatter.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const std::size_t before = open_descriptors();
  const DescriptorAnswer answer{random_key(), DescriptorStatus::kSent};
  std::vector<FileDescriptor> files;
  files.emplace_back(file_of(1));
  ASSERT_TRUE(send_message(connection.get(), std::as_bytes(std::span(&answer, 1)), files));
  files.clear();
  EXPECT_TRUE(says(error_of([&] { (void)client.request(std::array<std::uint64_t, 1>{1}); }),
                   "is not the one that shared it"));
  EXPECT_EQ(open_descriptors(), before);
}

// The number of sockets of the server `name` in this process.
std::size_t sockets_of(const string& name) {
  std::size_t count = 0;
  for (int socket = 0; socket < 1024; ++socket) {
    sockaddr_un address{};
    socklen_t size = sizeof(address);
    if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
        string(address.sun_path + 1, name.size()) == name) {
      ++count;
    }
  }
  return count;
}

TEST_F(SharingProcesses, AChildOfForkHasNoSocketOfItsParent) {
  const ServerAddress address = server().address();
  const RawPeer silent(address);
  // Once this is answered, the connection above was accepted.
  EXPECT_EQ(ask_for(address, 1), 1U);
  EXPECT_GE(sockets_of(address.name), 2U);
  const ChildProcess child([&] { return std::to_string(sockets_of(address.name)); });
  EXPECT_EQ(child.read(), "0");
  // The sockets of the parent are unchanged.
  EXPECT_TRUE(silent.is_open());
  EXPECT_EQ(ask_for(address, 2), 2U);
}

TEST_F(SharingProcesses, AChildThatOutlivesItsParentDoesNotAnswer) {
  const ChildProcess sender([] {
    const string handle = share();
    if (fork() != 0) {
      for (;;) {
        pause();
      }
    }
    // The child sends this, so it has returned from fork().
    return std::to_string(getpid()) + " " + handle;
  });
  const string told = sender.read();
  std::size_t digits = 0;
  const pid_t child = std::stoi(told, &digits);
  const IpcHandle handle = decode(told.substr(digits + 1));
  sender.end();
  ASSERT_EQ(kill(child, 0), 0);
  EXPECT_TRUE(says(error_of([&] { const DescriptorClient client(handle.server); }), "has ended"));
  EXPECT_EQ(error_of_receiving(handle), "the process that shared it has ended");
  const FileDescriptor again = open_unix_socket(0);
  EXPECT_TRUE(bind_abstract(again.get(), handle.server.name));
  kill(child, SIGKILL);
}

TEST_F(SharingProcesses, AChildOfForkStartsAServerOfItsOwn) {
  const ServerAddress parent = server().address();
  std::atomic<bool> over = false;
  // Makes connections come and go during forks.
  std::thread asker([&] {
    while (!over) {
      EXPECT_EQ(ask_for(parent, 3), 3U);
    }
  });
  for (int i = 0; i < 20; ++i) {
    const ChildProcess child(share);
    const IpcHandle handle = decode(child.read());
    EXPECT_NE(handle.server.name, parent.name);
    EXPECT_FALSE(is_equal(handle.server.request_key, parent.request_key));
    EXPECT_FALSE(is_equal(handle.server.answer_key, parent.answer_key));
    PeerProcesses peers;
    EXPECT_EQ(ids_received(handle, peers).at(0), 1U);
  }
  over = true;
  asker.join();
}

}  // namespace sharing_processes_test
}  // namespace ferro
