// The protocol of a DescriptorServer: one request and one answer per connection.
//
// Every handle contains two keys of 128 random bits. The first proves that the requester received a
// handle. The second proves that the server made the handle, and exposes another process that bound
// the name later. A request with a wrong key gets no answer.
//
// A process has one pair of keys, not one for each export, because the same block must have the
// same handle each time: both sides identify it by that. So the owner of one handle can request all
// memory that the process has shared, but no other. Pure, except for `random_key`.
#pragma once

#include "ferro/adapter/ipc/unix_socket.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace ferro {

using SharingKey = std::array<std::byte, 16>;

// Throws std::runtime_error if the kernel returns no random bytes.
SharingKey random_key();
// In constant time.
bool is_equal(const SharingKey& left, const SharingKey& right);

// The socket on which a process hands out descriptors, and the keys of both sides.
struct ServerAddress {
  std::string name;  // abstract; empty: no server
  SharingKey request_key{};
  SharingKey answer_key{};
};

inline constexpr std::array<char, 8> kRequestMagic = {'f', 'e', 'r', 'r', 'o', 'a', 's', 'k'};

// Only the used part of `ids` is sent.
struct DescriptorRequest {
  std::array<char, 8> magic = kRequestMagic;
  SharingKey key{};
  std::array<std::uint64_t, kMaxDescriptors> ids{};

  static constexpr std::size_t bytes_with(std::size_t ids) {
    return sizeof(magic) + sizeof(key) + ids * sizeof(std::uint64_t);
  }
  // The number of ids in a request of this size; 0 if the size is invalid.
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
  kSent = 1,  // the answer carries all descriptors, in the order of the ids; otherwise none
  kReleased = 2,
  kBusy = 3,     // the kernel passes no more descriptors for this user now
  kFull = 4,     // the server's process may open no more descriptors
  kRefused = 5,  // its driver refuses
};

struct DescriptorAnswer {
  SharingKey key{};
  DescriptorStatus status = DescriptorStatus::kReleased;
};
static_assert(std::is_trivially_copyable_v<DescriptorAnswer>);

}  // namespace ferro
