#include "sim/settings/config.h"

#include "ferro/base/bytes.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>

namespace ferro::sim {
namespace {

template <typename T>
std::optional<T> parse_number(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return value;
}

std::optional<std::size_t> parse_bytes(std::string_view text) {
  std::size_t unit = 1;
  for (const auto& [suffix, bytes] : {std::pair<std::string_view, std::size_t>{"KiB", kKiB},
                                      {"MiB", kMiB},
                                      {"GiB", kGiB},
                                      {"TiB", 1024 * kGiB}}) {
    if (text.ends_with(suffix)) {
      unit = bytes;
      text.remove_suffix(suffix.size());
      break;
    }
  }
  const auto count = parse_number<double>(text);
  if (!count || *count < 0) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(*count * static_cast<double>(unit));
}

// False if the value cannot be parsed or is out of range.
bool set_value(std::string_view key, std::string_view value, MachineConfig& config, bool& known) {
  known = true;
  if (key == "devices") {
    const auto n = parse_number<int>(value);
    config.devices = n.value_or(0);
    return n && *n >= 1 && *n <= 16;
  }
  if (key == "card") {
    config.card = find_card(value);
    if (std::optional<Card> own = parse_card(value)) {
      config.own_card = std::make_shared<const Card>(*std::move(own));
      config.card = config.own_card.get();
    }
    return config.card != nullptr;
  }
  if (key == "memory") {
    const auto bytes = parse_bytes(value);
    config.memory_bytes = align_down(bytes.value_or(0), 2 * kMiB);
    return bytes.has_value();
  }
  if (key == "context") {
    config.own_context_bytes = parse_bytes(value);
    return config.own_context_bytes.has_value();
  }
  if (key == "address_space") {
    const auto bytes = parse_bytes(value);
    config.address_space_bytes = bytes.value_or(0);
    return bytes && *bytes > 0;
  }
  if (key == "mode") {
    config.mode = value == "adversarial" ? TimeMode::kAdversarial
                  : value == "clock"     ? TimeMode::kClock
                                         : TimeMode::kEager;
    return value == "adversarial" || value == "clock" || value == "eager";
  }
  if (key == "seed") {
    const auto n = parse_number<std::uint64_t>(value);
    config.seed = n.value_or(0);
    return n.has_value();
  }
  if (key == "polls") {
    const auto n = parse_number<std::uint64_t>(value);
    config.polls = n.value_or(0);
    return n.has_value();
  }
  if (key == "turn") {
    const auto share = parse_number<double>(value);
    config.turn_probability = share.value_or(0);
    return share && *share > 0 && *share <= 1;
  }
  if (key == "max_pending") {
    const auto n = parse_number<std::size_t>(value);
    config.max_pending = n.value_or(0);
    return n && *n > 0;
  }
  if (key == "program") {
    const bool measured = value.starts_with('x');
    const auto number = parse_number<double>(value.substr(measured ? 1 : 0));
    config.program_factor = measured ? number.value_or(0) : 0;
    config.program_microseconds = measured ? 0 : number.value_or(0);
    return number && *number < 1e9 && (measured ? *number > 0 : *number >= 0);
  }
  if (key == "backing") {
    config.backing = value == "1";
    return value == "0" || value == "1";
  }
  if (key == "sharing") {
    config.sharing = value;
    return true;
  }
  known = false;
  return false;
}

}  // namespace

double thread_processor_time() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

std::string parse_config(std::string_view text, MachineConfig& config) {
  constexpr std::string_view kSeparators = ",; \t\n";
  MachineConfig result = config;
  while (true) {
    const std::size_t begin = text.find_first_not_of(kSeparators);
    if (begin == std::string_view::npos) {
      break;
    }
    text.remove_prefix(begin);
    const std::string_view item = text.substr(0, text.find_first_of(kSeparators));
    text.remove_prefix(item.size());
    const std::size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value =
        equals == std::string_view::npos ? std::string_view{} : item.substr(equals + 1);
    bool known = false;
    if (!set_value(key, value, result, known)) {
      if (key == "card") {
        return "there is no card \"" + std::string(value) +
               "\": use h100, h200 or the figures of a card";
      }
      return known ? "the value of \"" + std::string(item) + "\" is not acceptable"
                   : "there is no setting \"" + std::string(key) + "\"";
    }
  }
  config = result;
  return {};
}

MachineConfig config_from_environment() {
  MachineConfig config;
  constexpr std::array<std::pair<const char*, const char*>, 10> kVariables = {{
      {"FERRO_SIM_DEVICES", "devices"},
      {"FERRO_SIM_CARD", "card"},
      {"FERRO_SIM_MEMORY", "memory"},
      {"FERRO_SIM_ADDRESS_SPACE", "address_space"},
      {"FERRO_SIM_MODE", "mode"},
      {"FERRO_SIM_SEED", "seed"},
      {"FERRO_SIM_TURN", "turn"},
      {"FERRO_SIM_MAX_PENDING", "max_pending"},
      {"FERRO_SIM_PROGRAM", "program"},
      {"FERRO_SIM_BACKING", "backing"},
  }};
  for (const auto& [variable, key] : kVariables) {
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0') {
      const std::string mistake = parse_config(std::string(key) + "=" + value, config);
      if (!mistake.empty()) {
        std::fprintf(stderr, "ferro_alloc: %s is ignored: %s\n", variable, mistake.c_str());
      }
    }
  }
  return config;
}

}  // namespace ferro::sim
