// Identities of contents, also of those that nothing computed: equal operators on equal inputs give
// equal ones, in every run and on every rank.
//
// A plain value. Identities are 64-bit hashes; that two different contents have the same one is
// possible and harmless: equal choices are drawn for them.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <string_view>

namespace ferro::values {

class Identity {
 public:
  explicit Identity(std::uint64_t start = 0) : hash_(start) {}

  Identity& add(std::uint64_t word) {
    hash_ = (hash_ ^ word) * 0x9e3779b97f4a7c15;
    hash_ ^= hash_ >> 29;
    return *this;
  }
  template <typename Words>
  Identity& add_all(const Words& words) {
    add(words.size());
    for (const auto word : words) {
      add(static_cast<std::uint64_t>(word));
    }
    return *this;
  }
  Identity& add(std::string_view text);
  // Of tensors on the host the bytes, of other tensors only that there is one.
  Identity& add(const c10::IValue& argument);
  // Never 0.
  std::uint64_t value() const { return hash_ == 0 ? 1 : hash_; }

 private:
  std::uint64_t hash_;
};

}  // namespace ferro::values
