#include "values/host_facts.h"

#include "values/identity.h"

#include <array>
#include <cstring>
#include <string_view>

namespace ferro::values {
namespace {

// In lanes that do not wait for each other.
std::uint64_t hash_of(const HostBytes& memory, std::size_t begin, std::size_t bytes) {
  const std::byte* const first = memory.begin + begin;
  std::array<Identity, 8> lanes;
  std::array<std::uint64_t, lanes.size()> words{};
  std::size_t done = 0;
  for (; done + sizeof words <= bytes; done += sizeof words) {
    std::memcpy(words.data(), first + done, sizeof words);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      lanes[i].add(words[i]);
    }
  }
  Identity all;
  for (const Identity& lane : lanes) {
    all.add(lane.value());
  }
  const auto* const rest = reinterpret_cast<const char*>(first + done);
  return all.add(std::string_view(rest, bytes - done)).value();
}

}  // namespace

HostFacts::Facts::iterator HostFacts::first_ending_after(std::size_t begin) {
  const auto next = facts_.upper_bound(begin);
  return next != facts_.begin() && std::prev(next)->second.end > begin ? std::prev(next) : next;
}

void HostFacts::set(std::size_t begin, const Fact& fact, std::size_t hashed,
                    const HostBytes& memory) {
  const auto add = [&](std::size_t from, Fact part, std::size_t most) {
    const bool is_there = memory.begin != nullptr && part.end <= memory.size;
    part.hashed = is_there ? std::min(most, part.end - from) : 0;
    part.hash = part.hashed > 0 ? hash_of(memory, from, part.hashed) : 0;
    facts_[from] = part;
  };
  for (auto at = first_ending_after(begin); at != facts_.end() && at->first < fact.end;) {
    const auto [first, before] = *at;
    at = facts_.erase(at);
    if (first < begin) {
      Fact rest = before;
      rest.end = begin;
      add(first, rest, before.hashed);
    }
    if (before.end > fact.end) {
      Fact rest = before;
      rest.offset += fact.end - first;
      add(fact.end, rest, before.hashed);
    }
  }
  for (std::size_t from = begin; from < fact.end; from += kPart) {
    Fact part = fact;
    part.end = hashed == 0 ? fact.end : std::min(fact.end, from + kPart);
    part.offset += from - begin;
    add(from, part, hashed);
    if (hashed == 0) {
      break;
    }
  }
}

void HostFacts::drop_changed(std::size_t begin, std::size_t bytes, const HostBytes& memory) {
  for (auto at = first_ending_after(begin); at != facts_.end() && at->first < begin + bytes;) {
    const auto& [first, fact] = *at;
    const bool changed = fact.end > memory.size ||
                         (fact.hashed > 0 && fact.hash != hash_of(memory, first, fact.hashed));
    at = changed ? facts_.erase(at) : std::next(at);
  }
}

}  // namespace ferro::values
