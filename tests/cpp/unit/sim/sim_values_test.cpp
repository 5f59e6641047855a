// Unknown bytes: which they are, and how copies carry them; functions in stream order.
#include "sim/control.h"
#include "sim/memory/knowledge.h"

#include <cuda.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

namespace ferro::sim {
namespace sim_values_test {

struct Known {
  ferro_sim_certainty certainty = FERRO_SIM_KNOWN;
  std::uint64_t identity = 0;
  std::size_t offset = 0;
  bool operator==(const Known&) const = default;
};

TEST(Knowledge, AgreesWithAListOfBytes) {
  constexpr std::size_t kBytes = 64;
  constexpr ferro_sim_certainty kAll[] = {FERRO_SIM_UNKNOWN, FERRO_SIM_DRAWN, FERRO_SIM_KNOWN};
  std::mt19937 random(7);
  Knowledge knowledge;
  std::vector<Known> bytes(kBytes);
  const auto change = [&](std::size_t begin, std::size_t length, const auto& alter) {
    for (std::size_t i = 0; i < length; ++i) {
      alter(bytes[begin + i], i);
    }
  };
  for (int step = 0; step < 30000; ++step) {
    const std::size_t begin = random() % kBytes;
    const std::size_t length = 1 + random() % (kBytes - begin);
    const ferro_sim_certainty certainty = kAll[random() % 3];
    const std::uint64_t identity = 1 + random() % 4;
    const ferro_sim_origin origin = {identity, FERRO_SIM_KNOWN, 0, 0, 0, 0};
    ferro_sim_certainty least = FERRO_SIM_KNOWN;
    change(begin, length,
           [&](const Known& known, std::size_t) { least = std::min(least, known.certainty); });
    ASSERT_EQ(knowledge.least_certainty(begin, length), least);
    bool is_unknown = true;
    change(begin, length, [&](const Known& known, std::size_t) {
      is_unknown = is_unknown && known.certainty == FERRO_SIM_UNKNOWN;
    });
    ASSERT_EQ(knowledge.is_unknown(begin, length), is_unknown);
    switch (random() % 6) {
      case 0:
        knowledge.remove(begin, length);
        change(begin, length, [&](Known& known, std::size_t) { known = {}; });
        break;
      case 1:
        knowledge.set(begin, length, certainty, origin, 5);
        change(begin, length, [&](Known& known, std::size_t i) {
          known = {certainty, identity, 5 + i};
        });
        break;
      case 2:
        knowledge.set_certainty(begin, length, certainty);
        change(begin, length, [&](Known& known, std::size_t) { known.certainty = certainty; });
        break;
      case 3:
        knowledge.set_origin(begin, length, origin, 9);
        change(begin, length, [&](Known& known, std::size_t i) {
          known = {known.certainty, identity, 9 + i};
        });
        break;
      case 4:
        knowledge.remove_origin(begin, length);
        change(begin, length, [&](Known& known, std::size_t) { known = {known.certainty, 0, 0}; });
        break;
      default: {
        const std::size_t to = random() % (kBytes - length + 1);
        const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(begin);
        const std::vector<Known> copied(first, first + static_cast<std::ptrdiff_t>(length));
        knowledge.copy(to, knowledge, begin, length);
        std::copy(copied.begin(), copied.end(), bytes.begin() + static_cast<std::ptrdiff_t>(to));
      }
    }
    std::vector<Known> listed(kBytes);
    std::vector<ferro_sim_certainty> unsure(kBytes, FERRO_SIM_KNOWN);
    std::size_t parts = 0;
    knowledge.for_each_fact(0, kBytes,
                            [&](std::uint64_t at, std::size_t part, ferro_sim_certainty is,
                                const ferro_sim_origin* from, std::size_t offset) {
                              for (std::size_t i = 0; i < part; ++i) {
                                listed[at + i] = from == nullptr
                                                     ? Known{is, 0, 0}
                                                     : Known{is, from->identity, offset + i};
                              }
                              ++parts;
                              return true;
                            });
    knowledge.for_each_unsure(0, kBytes,
                              [&](std::uint64_t at, std::size_t part, ferro_sim_certainty is) {
                                const auto from = unsure.begin() + static_cast<std::ptrdiff_t>(at);
                                std::fill(from, from + static_cast<std::ptrdiff_t>(part), is);
                                return true;
                              });
    ASSERT_EQ(listed, bytes) << "after step " << step;
    ASSERT_TRUE(std::equal(
        bytes.begin(), bytes.end(), unsure.begin(),
        [](const Known& known, ferro_sim_certainty is) { return known.certainty == is; }));
    ASSERT_EQ(parts, knowledge.count());
  }
}

constexpr std::size_t kWords = 16;
using Words = std::array<std::uint32_t, kWords>;

struct Note {
  CUdeviceptr at;
  int calls = 0;
  int certainty = -2;
  Words seen{};
};

void look(void* argument) {
  auto* note = static_cast<Note*>(argument);
  ++note->calls;
  note->certainty = ferro_sim_least_certainty(note->at, sizeof note->seen);
  std::array<ferro_sim_piece, kWords> pieces{};
  const auto count =
      ferro_sim_take_pieces(note->at, sizeof note->seen, pieces.data(), kWords, kWords);
  auto* to = reinterpret_cast<std::byte*>(note->seen.data());
  for (std::int64_t i = 0; i < count; ++i) {
    const auto& [contents, offset, bytes] = pieces.at(static_cast<std::size_t>(i));
    if (contents != nullptr) {
      std::memcpy(to, static_cast<const std::byte*>(contents->kind->bytes(contents)) + offset,
                  bytes);
    }
    to += bytes;
    ferro_sim_release(contents);
  }
}

void forget(void* argument) {
  ferro_sim_write(static_cast<Note*>(argument)->at + 4, nullptr, 4, FERRO_SIM_UNKNOWN, 1);
}

void draw(void* argument) {
  ferro_sim_write(static_cast<Note*>(argument)->at + 8, nullptr, 4, FERRO_SIM_DRAWN, 1);
}

class SimValues : public ::testing::TestWithParam<const char*> {
 protected:
  SimValues() {
    EXPECT_EQ(ferro_sim_start(GetParam()), 0);
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&at_, sizeof(Words)), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&other_, sizeof(Words)), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    *ferro_sim_counts() = {};  // of the process: other tests ran in this thread
  }
  ~SimValues() override { ferro_sim_stop(); }

  CUdeviceptr at_ = 0;
  CUdeviceptr other_ = 0;
  CUstream stream_ = nullptr;
};

TEST_P(SimValues, FunctionsAreCalledInTheOrderOfTheStream) {
  Note before{at_};
  Note after{at_};
  EXPECT_EQ(ferro_sim_in_order(0, stream_, look, &before), 0);
  EXPECT_EQ(cuMemsetD32Async(at_, 9, kWords, stream_), CUDA_SUCCESS);
  EXPECT_EQ(ferro_sim_in_order(0, stream_, look, &after), 0);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(before.calls, 1);
  EXPECT_EQ(before.seen[3], 0U);
  EXPECT_EQ(after.seen[3], 9U);
  EXPECT_EQ(after.certainty, FERRO_SIM_KNOWN);
}

TEST_P(SimValues, UnknownBytesAreCarriedByCopiesAndCuredByWriting) {
  Note note{at_};
  Note copy{other_};
  Words host{};
  EXPECT_EQ(ferro_sim_in_order(0, stream_, forget, &note), 0);
  EXPECT_EQ(cuMemcpyDtoDAsync(other_, at_, sizeof host, stream_), CUDA_SUCCESS);
  EXPECT_EQ(ferro_sim_in_order(0, stream_, look, &copy), 0);
  EXPECT_EQ(cuMemcpyDtoHAsync(host.data(), other_, 4, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(copy.certainty, FERRO_SIM_UNKNOWN);
  EXPECT_EQ(ferro_sim_counts()->reads[FERRO_SIM_UNKNOWN], 0U);
  EXPECT_EQ(cuMemcpyDtoHAsync(host.data(), other_, 8, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(ferro_sim_counts()->reads[FERRO_SIM_UNKNOWN], 1U);
  EXPECT_EQ(cuMemcpyHtoDAsync(other_ + 4, host.data(), 4, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoHAsync(host.data(), other_, sizeof host, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(ferro_sim_counts()->reads[FERRO_SIM_UNKNOWN], 1U);
}

TEST_P(SimValues, ReadsOfDrawnBytesAreThoseWithoutUnknownBytes) {
  Note note{at_};
  Words host{};
  EXPECT_EQ(ferro_sim_in_order(0, stream_, forget, &note), 0);
  EXPECT_EQ(ferro_sim_in_order(0, stream_, draw, &note), 0);
  EXPECT_EQ(cuMemcpyDtoDAsync(other_, at_, sizeof host, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoHAsync(host.data(), other_ + 8, 8, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(ferro_sim_counts()->reads[FERRO_SIM_UNKNOWN], 0U);
  EXPECT_EQ(ferro_sim_counts()->reads[FERRO_SIM_DRAWN], 1U);
  EXPECT_EQ(cuMemcpyDtoHAsync(host.data(), other_, sizeof host, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(ferro_sim_counts()->reads[FERRO_SIM_UNKNOWN], 1U);
  EXPECT_EQ(ferro_sim_counts()->reads[FERRO_SIM_DRAWN], 1U);
}

TEST_P(SimValues, AnAnswerReachesSmallCopiesToTheHostOnly) {
  std::uint32_t small = 0;
  Words large{};
  EXPECT_EQ(cuMemsetD32Async(at_, 9, kWords, stream_), CUDA_SUCCESS);
  ferro_sim_answer(5);
  EXPECT_EQ(cuMemcpyDtoHAsync(&small, at_, sizeof small, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoHAsync(large.data(), at_, sizeof large, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(small, 5U);
  EXPECT_EQ(large[0], 9U);
  ferro_sim_end_answer();
  EXPECT_EQ(cuMemcpyDtoHAsync(&small, at_, sizeof small, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(small, 9U);
}

TEST_P(SimValues, TheInnermostAnswerCountsAndASearchGetsAPair) {
  std::uint32_t small = 0;
  std::array<std::uint64_t, 2> pair{};
  EXPECT_EQ(cuMemsetD32Async(at_, 9, kWords, stream_), CUDA_SUCCESS);
  ferro_sim_answer(5);
  ferro_sim_answer(6);
  EXPECT_EQ(cuMemcpyDtoHAsync(&small, at_, sizeof small, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoHAsync(pair.data(), at_, sizeof pair, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(small, 6U);
  EXPECT_EQ(pair, (std::array<std::uint64_t, 2>{1, 6}));
  ferro_sim_end_answer();
  EXPECT_EQ(cuMemcpyDtoHAsync(&small, at_, sizeof small, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(small, 5U);
  ferro_sim_end_answer();
  ferro_sim_end_answer();  // without a beginning
}

TEST_P(SimValues, ResultsOfKernelsThatOperatorsReadBackAreUnknownZeros) {
  static std::uint64_t result_at;
  result_at = at_;
  ferro_sim_on_read_back([](std::uint64_t address) { return address == result_at ? 1 : 0; });
  std::uint32_t small = 1;
  const auto read = [&](std::uint64_t from) {
    EXPECT_EQ(cuMemcpyDtoHAsync(&small, from, sizeof small, stream_), CUDA_SUCCESS);
    EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
    return small;
  };
  EXPECT_EQ(cuMemsetD32Async(at_, 9, kWords, stream_), CUDA_SUCCESS);
  EXPECT_EQ(read(at_), 9U);
  ++ferro_sim_counts()->operators;
  EXPECT_EQ(read(at_), 0U);
  EXPECT_EQ(ferro_sim_counts()->reads[FERRO_SIM_UNKNOWN], 1U);
  EXPECT_EQ(read(at_ + 4), 9U);
  ferro_sim_answer(5);
  EXPECT_EQ(read(at_), 5U);
  ferro_sim_end_answer();
  Words large{};
  EXPECT_EQ(cuMemcpyDtoHAsync(large.data(), at_, sizeof large, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(large[0], 9U);
  --ferro_sim_counts()->operators;
  EXPECT_EQ(ferro_sim_counts()->reads[FERRO_SIM_UNKNOWN], 1U);
  ferro_sim_on_read_back(nullptr);
}

struct Doubts {
  CUdeviceptr at;
  std::array<std::uint8_t, kWords> of_words{};
  ferro_sim_certainties certainties{};
};

void list_doubts(void* argument) {
  auto* doubts = static_cast<Doubts*>(argument);
  EXPECT_EQ(ferro_sim_doubts(doubts->at, sizeof(Words), 4, doubts->of_words.data(), kWords), 0);
  std::array<ferro_sim_origin_piece, kWords> pieces{};
  ferro_sim_origins(doubts->at, sizeof(Words), pieces.data(), kWords, &doubts->certainties);
}

TEST_P(SimValues, DoubtsAreThoseOfTheLeastCertainByteOfEachElement) {
  const auto doubts_of = [this](std::size_t at, std::size_t bytes, ferro_sim_certainty certainty) {
    Doubts doubts{at_};
    ferro_sim_write(at_ + at, nullptr, bytes, certainty, 1);
    ferro_sim_at_once(list_doubts, &doubts);
    return doubts;
  };
  Doubts doubts = doubts_of(0, sizeof(Words), FERRO_SIM_UNKNOWN);
  EXPECT_EQ(doubts.of_words, (std::array<std::uint8_t, kWords>{2, 2, 2, 2, 2, 2, 2, 2,  //
                                                               2, 2, 2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(doubts.certainties.most, FERRO_SIM_UNKNOWN);
  doubts = doubts_of(6, 10, FERRO_SIM_DRAWN);
  EXPECT_EQ(doubts.of_words, (std::array<std::uint8_t, kWords>{2, 2, 1, 1, 2, 2, 2, 2,  //
                                                               2, 2, 2, 2, 2, 2, 2, 2}));
  EXPECT_EQ(doubts.certainties.most, FERRO_SIM_DRAWN);
  doubts = doubts_of(20, 44, FERRO_SIM_KNOWN);
  EXPECT_EQ(doubts.of_words, (std::array<std::uint8_t, kWords>{2, 2, 1, 1, 2}));
  EXPECT_EQ(doubts.certainties.least, FERRO_SIM_UNKNOWN);
  EXPECT_EQ(doubts.certainties.most, FERRO_SIM_KNOWN);
  const auto expect_too_many = [](void* argument) {
    auto* of = static_cast<Doubts*>(argument);
    EXPECT_EQ(ferro_sim_doubts(of->at, sizeof(Words), 4, of->of_words.data(), 2), 1);
    EXPECT_EQ(ferro_sim_doubts(of->at, sizeof(Words), 4, of->of_words.data(), 3), 0);
  };
  ferro_sim_at_once(expect_too_many, &doubts);
}

TEST_P(SimValues, ReplaysForgetTheWrittenRowsOnly) {
  EXPECT_EQ(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD32Async(other_, 1, 1, stream_), CUDA_SUCCESS);
  struct Rows {
    CUdeviceptr at;
    CUstream stream;
  } rows{at_, stream_};
  const auto forget_rows = [](void* argument) {
    const auto* there = static_cast<Rows*>(argument);
    const ferro_sim_origin origin = {7, FERRO_SIM_KNOWN, 0, 0, 0, 0};
    // The second and the third word of each four.
    EXPECT_EQ(
        ferro_sim_forget_in_replays(0, there->stream, there->at + 4, 14 * 4, &origin, 0, 8, 16), 0);
  };
  ferro_sim_at_once(forget_rows, &rows);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  CUgraphExec exec = nullptr;
  EXPECT_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
  const std::array<std::uint8_t, kWords> written = {0, 2, 2, 0, 0, 2, 2, 0, 0, 2, 2, 0, 0, 2, 2, 0};
  Doubts now{at_};
  ferro_sim_at_once(list_doubts, &now);
  EXPECT_EQ(now.of_words, written);
  Doubts replayed{at_};
  EXPECT_EQ(cuMemsetD32Async(at_, 9, kWords, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuGraphLaunch(exec, stream_), CUDA_SUCCESS);
  EXPECT_EQ(ferro_sim_in_order(0, stream_, list_doubts, &replayed), 0);
  EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS);
  EXPECT_EQ(replayed.of_words, written);
}

TEST_P(SimValues, NothingIsCalledUnderACapture) {
  Note note{at_};
  EXPECT_EQ(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  EXPECT_EQ(ferro_sim_in_order(0, stream_, look, &note), 1);
  ferro_sim_at_once(look, &note);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_SUCCESS);
  std::size_t nodes = 9;
  EXPECT_EQ(cuGraphGetNodes(graph, nullptr, &nodes), CUDA_SUCCESS);
  EXPECT_EQ(nodes, 0U);
  EXPECT_EQ(note.calls, 1);
  EXPECT_EQ(ferro_sim_in_order(7, stream_, look, &note), -1);
}

INSTANTIATE_TEST_SUITE_P(, SimValues,
                         ::testing::Values("memory=64MiB", "memory=64MiB,mode=adversarial",
                                           "memory=64MiB,mode=clock"));

}  // namespace sim_values_test
}  // namespace ferro::sim
