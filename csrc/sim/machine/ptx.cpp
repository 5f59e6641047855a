#include "sim/machine/ptx.h"

#include "ferro/base/bytes.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

namespace ferro::sim {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";

// Words, and single characters of punctuation. Comments are left out.
class Tokens {
 public:
  explicit Tokens(std::string_view text) : text_(text) {}

  // Empty at the end.
  std::string_view next() {
    skip();
    const std::size_t length = text_.find_first_of("(){},[]; \t\r\n");
    const std::string_view word = text_.substr(0, std::max<std::size_t>(length, 1));
    text_.remove_prefix(word.size());
    return word;
  }
  // Goes behind the next such word. False, at the end, if there is none.
  bool skip_to(std::string_view word) {
    const std::size_t at = text_.find(word);
    text_.remove_prefix(at == std::string_view::npos ? text_.size() : at + word.size());
    return at != std::string_view::npos;
  }

 private:
  void skip() {
    for (;;) {
      text_.remove_prefix(std::min(text_.find_first_not_of(kSpaces), text_.size()));
      if (text_.starts_with("//")) {
        skip_to("\n");
      } else if (text_.starts_with("/*")) {
        skip_to("*/");
      } else {
        return;
      }
    }
  }

  std::string_view text_;
};

std::optional<std::size_t> number(std::string_view word) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size() ? std::optional(value)
                                                                  : std::nullopt;
}

// The bytes of a type such as ".u64"; none for other words.
std::optional<std::size_t> bytes_of_type(std::string_view word) {
  constexpr std::string_view kKinds = "usfb";
  if (word.size() < 3 || word[0] != '.' || kKinds.find(word[1]) == std::string_view::npos) {
    return std::nullopt;
  }
  const auto bits = number(word.substr(2));
  return bits && *bits != 0 && *bits % 8 == 0 ? std::optional(*bits / 8) : std::nullopt;
}

struct Declaration {
  std::size_t alignment = 0;
  std::size_t bytes = 0;
};

// Of ".param .align 8 .b8 name[24]", which begins with `word`. Ends at the comma or the parenthesis
// behind it, which `word` is then. None for an unknown type.
std::optional<Declaration> read_declaration(Tokens& tokens, std::string_view& word) {
  std::size_t element = 0;
  std::size_t count = 1;
  std::size_t alignment = 0;
  bool of_memory = false;  // behind ".ptr" it is the alignment of what the pointer refers to
  for (; word != "," && word != ")"; word = tokens.next()) {
    if (word.empty()) {
      return std::nullopt;
    }
    if (word == ".ptr") {
      of_memory = true;
    } else if (word == ".align") {
      const std::size_t given = number(tokens.next()).value_or(0);
      alignment = of_memory ? alignment : given;
    } else if (word == "[") {
      count = number(tokens.next()).value_or(0);
    } else if (const auto bytes = bytes_of_type(word)) {
      element = *bytes;
    }
  }
  if (element == 0 || count == 0) {
    return std::nullopt;
  }
  return Declaration{std::max(alignment, element), element * count};
}

// Of the declarations behind a kernel's name.
std::optional<Parameters> read_parameters_of_kernel(Tokens& tokens) {
  Parameters parameters;
  std::size_t end = 0;
  std::string_view word = tokens.next();
  while (word == "(" || word == ",") {
    word = tokens.next();
    if (word == ")") {
      break;
    }
    const auto declared = read_declaration(tokens, word);
    if (!declared) {
      return std::nullopt;
    }
    parameters.push_back({align_up(end, declared->alignment), declared->bytes});
    end = parameters.back().offset + declared->bytes;
  }
  return parameters;
}

}  // namespace

std::unordered_map<std::string, Parameters> read_ptx_parameters(std::string_view text) {
  std::unordered_map<std::string, Parameters> found;
  Tokens tokens(text);
  while (tokens.skip_to(".entry")) {
    const std::string name(tokens.next());
    if (auto parameters = read_parameters_of_kernel(tokens)) {
      found.emplace(name, *std::move(parameters));
    }
  }
  return found;
}

}  // namespace ferro::sim
