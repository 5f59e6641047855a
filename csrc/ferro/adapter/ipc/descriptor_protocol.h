// What goes over the socket of a DescriptorServer: one request, one answer, and the end of the
// connection.
//
// Two keys of 128 random bits stand in every handle. With the first the asker shows that it was
// given a handle. With the second the server shows that it made the handle, so that whoever bound
// the name after it had ended is found out. A request with another key is not answered at all.
//
// There is one pair for a process, not one for an export: the same block must have the same handle
// each time, by which both sides know it. Who was given one handle could therefore ask for all
// that the process has shared, and for nothing else of it. Pure, but for `random_key`.
#pragma once

#include "ferro/adapter/ipc/unix_socket.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace ferro {

using SharingKey = std::array<std::byte, 16>;

// Throws std::runtime_error when the kernel gives no random bytes.
SharingKey random_key();
// Takes as long for a key that is almost right as for any other.
bool is_equal(const SharingKey& left, const SharingKey& right);

// Where a process hands out descriptors, and what both sides of a request must show.
struct ServerAddress {
  std::string name;  // abstract; empty: nowhere
  SharingKey request_key{};
  SharingKey answer_key{};
};

inline constexpr std::array<char, 8> kRequestMagic = {'f', 'e', 'r', 'r', 'o', 'a', 's', 'k'};

// As many bytes are sent as its ids take.
struct DescriptorRequest {
  std::array<char, 8> magic = kRequestMagic;
  SharingKey key{};
  std::array<std::uint64_t, kMaxDescriptors> ids{};

  static constexpr std::size_t bytes_with(std::size_t ids) {
    return sizeof(magic) + sizeof(key) + ids * sizeof(std::uint64_t);
  }
  // 0 for a size that no request has.
  static constexpr std::size_t ids_in(std::size_t bytes) {
    const std::size_t none = bytes_with(0);
    const bool is_whole = bytes > none && (bytes - none) % sizeof(std::uint64_t) == 0;
    const std::size_t ids = is_whole ? (bytes - none) / sizeof(std::uint64_t) : 0;
    return ids <= kMaxDescriptors ? ids : 0;
  }
};
static_assert(sizeof(DescriptorRequest) == DescriptorRequest::bytes_with(kMaxDescriptors));
static_assert(std::is_trivially_copyable_v<DescriptorRequest>);

enum class DescriptorStatus : std::uint64_t {
  kSent = 1,  // all of them come with the answer, in the order of the ids; otherwise none
  kReleased = 2,
  kBusy = 3,     // the kernel passes no more descriptors for this user now
  kFull = 4,     // the process that is asked may open no more descriptors
  kRefused = 5,  // its driver makes none
};

struct DescriptorAnswer {
  SharingKey key{};
  DescriptorStatus status = DescriptorStatus::kReleased;
};
static_assert(std::is_trivially_copyable_v<DescriptorAnswer>);

}  // namespace ferro
