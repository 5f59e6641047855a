// Cards that several processes share. Locks belong to processes, so the tests use real processes.
#include "sim/memory/shared_capacity.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fcntl.h>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace ferro::sim {
namespace sim_shared_capacity_test {

// Another process that joins the cards, runs a function, and then waits until it is killed.
class Joined {
 public:
  Joined(const std::string& path, const std::function<bool(SharedCapacity&)>& part) {
    int ends[2] = {};
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    process_ = fork();
    if (process_ == 0) {
      const auto cards = SharedCapacity::open(path);
      const char did = cards != nullptr && part(*cards) ? 'y' : 'n';
      if (write(ends[1], &did, 1) == 1) {
        for (;;) pause();
      }
      _exit(1);
    }
    close(ends[1]);
    char did = '?';
    EXPECT_EQ(read(ends[0], &did, 1), 1);
    close(ends[0]);
    worked_ = did == 'y';
  }
  // Kills the process, so that it releases nothing itself.
  ~Joined() {
    kill(process_, SIGKILL);
    EXPECT_EQ(waitpid(process_, nullptr, 0), process_);
  }
  Joined(const Joined&) = delete;
  Joined& operator=(const Joined&) = delete;

  bool worked() const { return worked_; }
  pid_t process() const { return process_; }

 private:
  pid_t process_ = -1;
  bool worked_ = false;
};

TEST(SimSharedCapacity, GivesUpToTheCapacityOfEachDevice) {
  const auto cards = SharedCapacity::create();
  ASSERT_NE(cards, nullptr);
  EXPECT_TRUE(cards->take(0, 6, 10));
  EXPECT_FALSE(cards->take(0, 5, 10));
  EXPECT_EQ(cards->allocated(0), 6U);
  EXPECT_TRUE(cards->take(0, 4, 10));
  EXPECT_TRUE(cards->take(1, 10, 10));
  cards->add(0, 7);
  EXPECT_EQ(cards->allocated(0), 17U);
  cards->give_back(0, 17);
  EXPECT_EQ(cards->allocated(0), 0U);
  EXPECT_EQ(cards->peak(0), 17U);
  EXPECT_EQ(cards->allocated(1), 10U);
}

TEST(SimSharedCapacity, CountsWhatAllProcessesHold) {
  const auto cards = SharedCapacity::create();
  ASSERT_NE(cards, nullptr);
  ASSERT_TRUE(cards->take(0, 4, 10));
  const Joined other(cards->path(), [](SharedCapacity& joined) {
    return !joined.take(0, 7, 10) && joined.take(0, 6, 10) && joined.allocated(0) == 10;
  });
  EXPECT_TRUE(other.worked());
  EXPECT_FALSE(cards->take(0, 1, 10));
  const std::vector<SharedCapacity::Holder> holders = cards->holders(0);
  ASSERT_EQ(holders.size(), 2U);
  EXPECT_EQ(holders[0].process, getpid());
  EXPECT_EQ(holders[0].bytes, 4U);
  EXPECT_EQ(holders[1].process, other.process());
  EXPECT_EQ(holders[1].bytes, 6U);
}

TEST(SimSharedCapacity, AnEndedProcessHoldsNothing) {
  const auto cards = SharedCapacity::create();
  ASSERT_NE(cards, nullptr);
  for (int round = 0; round < 3; ++round) {
    {
      const Joined killed(cards->path(),
                          [](SharedCapacity& joined) { return joined.take(0, 10, 10); });
      EXPECT_TRUE(killed.worked());
      EXPECT_EQ(cards->allocated(0), 10U);
    }
    EXPECT_EQ(cards->allocated(0), 0U);
    EXPECT_TRUE(cards->holders(0).empty());
  }
  EXPECT_TRUE(cards->take(0, 10, 10));
  EXPECT_EQ(cards->peak(0), 10U);
}

TEST(SimSharedCapacity, OpensNothingElse) {
  EXPECT_EQ(SharedCapacity::open("/nonexistent/cards"), nullptr);
  const int empty = memfd_create("no cards", MFD_CLOEXEC);
  ASSERT_GE(empty, 0);
  const std::string path = "/proc/self/fd/" + std::to_string(empty);
  EXPECT_EQ(SharedCapacity::open(path), nullptr);
  ASSERT_EQ(ftruncate(empty, 1 << 20), 0);
  EXPECT_EQ(SharedCapacity::open(path), nullptr);
  close(empty);
}

}  // namespace sim_shared_capacity_test
}  // namespace ferro::sim
