#include "sim/settings/card.h"

#include "ferro/base/bytes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <tuple>

namespace ferro::sim {
namespace {

// From data sheets; the links are without their protocols' overhead.
constexpr CardSpeed kH100{3350, 55, 375, 989, 67, 67};
constexpr CardSpeed kH200{4800, 55, 375, 989, 67, 67};

const std::array<Card, 2>& own_cards() {
  static const std::array<Card, 2> cards = {
      Card{"h100", "NVIDIA H100 80GB HBM3", 85017493504, 648871936, 9, 0, 132, 2048, 233472,
           50 * 1024 * 1024, 5120, kH100},
      Card{"h200", "NVIDIA H200", 150109880320, 552402944, 9, 0, 132, 2048, 233472,
           60 * 1024 * 1024, 6144, kH200}};
  return cards;
}

bool read(std::string_view field, std::string& value) {
  value = field;
  std::ranges::replace(value, '_', ' ');
  return !value.empty();
}

template <typename T>
requires std::integral<T> || std::floating_point<T>
bool read(std::string_view field, T& value) {
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  return error == std::errc{} && end == field.data() + field.size() && value >= 0;
}

std::string_view next_field(std::string_view& text) {
  const std::string_view field = text.substr(0, text.find(':'));
  text.remove_prefix(std::min(text.size(), field.size() + 1));
  return field;
}

}  // namespace

const Card* find_card(std::string_view key) {
  const auto& cards = own_cards();
  const auto found = std::ranges::find(cards, key, &Card::key);
  return found == cards.end() ? nullptr : &*found;
}

std::optional<Card> parse_card(std::string_view text) {
  if (std::ranges::count(text, ':') != 16) {
    return std::nullopt;
  }
  Card card{};
  CardSpeed& speed = card.speed;
  const auto figures =
      std::tie(card.key, card.name, card.memory_bytes, card.context_bytes, card.compute_major,
               card.compute_minor, card.multiprocessors, card.threads_per_multiprocessor,
               card.shared_bytes_per_multiprocessor, card.l2_bytes, card.memory_bus_bits,
               speed.memory, speed.host_link, speed.peer_link, speed.fp16, speed.fp32, speed.fp64);
  const bool complete =
      std::apply([&](auto&... figure) { return (read(next_field(text), figure) && ...); }, figures);
  return complete ? std::optional(std::move(card)) : std::nullopt;
}

}  // namespace ferro::sim
