// The server of descriptors with peers that have no key, send invalid requests, send nothing, are
// many, or are stopped.
#include "support/child_process.h"
#include "support/descriptor_limit.h"
#include "support/descriptor_peers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <numeric>
#include <vector>

namespace ferro {
namespace descriptor_server_test {

using std::string;

bool says(const string& text, const string& part) { return text.find(part) != string::npos; }

TEST(DescriptorServer, HandsOutWhatIsAskedForInItsOrder) {
  std::vector<std::uint64_t> ids(kMaxDescriptors);
  std::iota(ids.rbegin(), ids.rend(), 1);
  const std::vector<FileDescriptor> files = DescriptorClient(server().address()).request(ids);
  ASSERT_EQ(files.size(), ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(id_in(files[i]), ids[i]);
  }
}

TEST(DescriptorServer, AllOrNothingIsHandedOut) {
  const std::size_t before = open_descriptors();
  const auto ask = [] {
    (void)DescriptorClient(server().address())
        .request(std::array<std::uint64_t, 2>{1, kKnownIds + 1});
  };
  EXPECT_TRUE(says(error_of(ask), "has released it since"));
  EXPECT_EQ(ask_for(server().address(), 2), 2U);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(DescriptorServer, ARequestWithoutTheKeyIsNotAnswered) {
  const ServerAddress address = server().address();
  for (std::size_t i = 0; i < address.request_key.size(); ++i) {
    for (const int bit : {0, 7}) {
      ServerAddress wrong = address;
      wrong.request_key[i] ^= std::byte{1} << bit;
      // The answer is the same for a known and for an unknown id.
      for (const std::uint64_t id : {std::uint64_t{1}, kKnownIds + 1}) {
        const RawPeer peer(address);
        EXPECT_TRUE(peer.ask(request_for(wrong, id), 1));
        EXPECT_EQ(peer.answer_bytes(), 0U);
      }
      EXPECT_TRUE(says(error_of([&] { (void)ask_for(wrong, 1); }), "closed without an answer"));
    }
  }
  EXPECT_EQ(ask_for(address, 3), 3U);
}

TEST(DescriptorServer, AnInvalidRequestIsNotAnswered) {
  const ServerAddress address = server().address();
  const std::size_t before = open_descriptors();
  const DescriptorRequest request = request_for(address, 1);
  const auto whole = std::as_bytes(std::span(&request, 1));
  // Parts of a request, one without ids, and one id and a half.
  for (const std::size_t size : {1, 8, 23, 24, 28, 36}) {
    const RawPeer peer(address);
    EXPECT_TRUE(peer.send(whole.first(size)));
    EXPECT_EQ(peer.answer_bytes(), 0U) << size;
  }
  std::vector<std::byte> long_one(sizeof(request) + 8);
  std::ranges::copy(whole, long_one.begin());
  const RawPeer tells_more(address);
  EXPECT_TRUE(tells_more.send(long_one));
  EXPECT_EQ(tells_more.answer_bytes(), 0U);
  DescriptorRequest garbage = request;
  garbage.magic.fill('\xff');
  const RawPeer babbles(address);
  EXPECT_TRUE(babbles.ask(garbage, 1));
  EXPECT_EQ(babbles.answer_bytes(), 0U);
  EXPECT_EQ(ask_for(address, 4), 4U);
  // The two peers of this process are open.
  EXPECT_EQ(open_descriptors(), before + 2);
}

TEST(DescriptorServer, DescriptorsThatComeWithARequestAreNotKept) {
  const ServerAddress address = server().address();
  const std::size_t before = open_descriptors();
  {
    const RawPeer peer(address);
    const DescriptorRequest request = request_for(address, 1);
    std::vector<FileDescriptor> files;
    files.emplace_back(file_of(1));
    const auto bytes = std::as_bytes(std::span(&request, 1));
    EXPECT_TRUE(send_message(peer.get(), bytes.first(DescriptorRequest::bytes_with(1)), files));
    EXPECT_EQ(peer.answer_bytes(), sizeof(DescriptorAnswer));
  }
  EXPECT_EQ(ask_for(address, 5), 5U);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(DescriptorServer, OneConnectionIsOneRequest) {
  const ServerAddress address = server().address();
  const RawPeer peer(address);
  EXPECT_TRUE(peer.ask(request_for(address, 1), 1));
  EXPECT_EQ(peer.answer_bytes(), sizeof(DescriptorAnswer));
  (void)peer.ask(request_for(address, 2), 1);
  EXPECT_EQ(peer.answer_bytes(), 0U);
  EXPECT_EQ(ask_for(address, 6), 6U);
}

TEST(DescriptorServer, HalfClosedConnections) {
  const ServerAddress address = server().address();
  const RawPeer asks_last(address);
  EXPECT_TRUE(asks_last.ask(request_for(address, 1), 1));
  shutdown(asks_last.get(), SHUT_WR);
  EXPECT_EQ(asks_last.answer_bytes(), sizeof(DescriptorAnswer));
  const RawPeer asks_nothing(address);
  shutdown(asks_nothing.get(), SHUT_WR);
  EXPECT_EQ(asks_nothing.answer_bytes(), 0U);
  const RawPeer does_not_listen(address);
  shutdown(does_not_listen.get(), SHUT_RD);
  (void)does_not_listen.ask(request_for(address, 1), 1);
  EXPECT_EQ(ask_for(address, 7), 7U);
}

TEST(DescriptorServer, SilentPeersDoNotDelayOthers) {
  const ServerAddress address = server().address();
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 50; ++i) {
    silent.push_back(std::make_unique<RawPeer>(address));
  }
  EXPECT_EQ(ask_for(address, 8), 8U);
  // The silent peers were not closed, and may still send a request.
  for (const auto& peer : silent) {
    EXPECT_TRUE(peer->is_open());
    EXPECT_TRUE(peer->ask(request_for(address, 9), 1));
    EXPECT_EQ(peer->answer_bytes(), sizeof(DescriptorAnswer));
  }
}

TEST(DescriptorServer, AThousandConnectionsAtOnce) {
  const DescriptorLimit limit(8192);
  if (!limit.is_set()) {
    GTEST_SKIP() << "this process may not open 2,000 descriptors";
  }
  const ServerAddress address = server().address();
  const std::size_t before = open_descriptors();
  {
    std::vector<std::unique_ptr<DescriptorClient>> clients;
    for (int i = 0; i < 1000; ++i) {
      clients.push_back(std::make_unique<DescriptorClient>(address));
    }
    for (std::size_t i = 0; i < clients.size(); ++i) {
      const std::uint64_t id = 1 + i % kKnownIds;
      EXPECT_EQ(id_in(clients[i]->request(std::array{id}).at(0)), id);
    }
  }
  EXPECT_EQ(open_descriptors(), before);
}

TEST(DescriptorServer, BeyondTheLimitTheOldestSilentConnectionIsClosed) {
  const ServerAddress address = server().address();
  const DescriptorLimit limit(512);
  ASSERT_TRUE(limit.is_set());
  constexpr std::size_t kBound = 512 / 4;
  constexpr std::size_t kTooMany = 22;
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (std::size_t i = 0; i < kBound + kTooMany; ++i) {
    silent.push_back(std::make_unique<RawPeer>(address));
  }
  EXPECT_EQ(ask_for(address, 10), 10U);
  for (std::size_t i = 0; i < silent.size(); ++i) {
    if (i < kTooMany) {
      EXPECT_FALSE(silent[i]->is_open()) << i;
    } else if (i > kTooMany) {
      // The client that asked was a connection too, for a moment.
      EXPECT_TRUE(silent[i]->is_open()) << i;
    }
  }
}

TEST(DescriptorServer, ALackOfDescriptorsIsReported) {
  DescriptorClient client(server().address());
  // The connection was accepted before this one, whose descriptors are closed by now.
  (void)open_descriptors();
  const auto ask = [&] {
    const DescriptorLimit limit(next_descriptor());
    ASSERT_TRUE(limit.is_set());
    (void)client.request(std::array<std::uint64_t, 1>{1});
  };
  EXPECT_EQ(error_of(ask),
            "the process that shared the memory may open no more file descriptors (ulimit -n)");
  EXPECT_EQ(ask_for(server().address(), 1), 1U);
}

TEST(DescriptorServer, MoreSilentPeersThanALoweredLimitDoNotDelayOthers) {
  const ServerAddress address = server().address();
  std::vector<std::unique_ptr<RawPeer>> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(std::make_unique<RawPeer>(address));
  }
  DescriptorClient first(address);
  DescriptorClient second(address);
  (void)open_descriptors();
  const DescriptorLimit limit(8);
  ASSERT_TRUE(limit.is_set());
  for (DescriptorClient* client : {&first, &second}) {
    const auto ask = [&] { (void)client->request(std::array<std::uint64_t, 1>{1}); };
    EXPECT_FALSE(says(error_of(ask), "no answer"));
  }
  EXPECT_FALSE(silent.front()->is_open());
}

TEST(DescriptorServer, StoppedPeersDoNotDelayOthers) {
  const ServerAddress address = server().address();
  const ChildProcess silent([&] {
    const RawPeer peer(address);
    raise(SIGSTOP);
    return string();
  });
  const ChildProcess asked([&] {
    const RawPeer peer(address);
    (void)peer.ask(request_for(address, 1), 1);
    raise(SIGSTOP);
    return string();
  });
  silent.wait_until_stopped();
  asked.wait_until_stopped();
  EXPECT_EQ(ask_for(address, 11), 11U);
}

TEST(DescriptorServer, KeysAreRandomAndComparedWhole) {
  const SharingKey key = random_key();
  EXPECT_TRUE(is_equal(key, key));
  EXPECT_FALSE(is_equal(key, random_key()));
  const ServerAddress address = server().address();
  EXPECT_FALSE(is_equal(address.request_key, address.answer_key));
  EXPECT_TRUE(is_equal(address.request_key, server().address().request_key));
  SharingKey other = key;
  other.back() ^= std::byte{0x80};
  EXPECT_FALSE(is_equal(key, other));
}

}  // namespace descriptor_server_test
}  // namespace ferro
