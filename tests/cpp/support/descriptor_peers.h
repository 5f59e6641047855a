// A server of descriptors in the test's own process, and its clients.
#pragma once

#include "ferro/adapter/ipc/descriptor_client.h"
#include "ferro/adapter/ipc/descriptor_protocol.h"
#include "ferro/adapter/ipc/descriptor_server.h"
#include "ferro/adapter/ipc/unix_socket.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <poll.h>
#include <span>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

namespace ferro {

inline constexpr std::uint64_t kKnownIds = 300;

// A file that holds its id.
inline int file_of(std::uint64_t id) {
  if (id == 0 || id > kKnownIds) {
    return -1;
  }
  const int file = memfd_create("shared", MFD_CLOEXEC);
  (void)!pwrite(file, &id, sizeof(id), 0);
  return file;
}

inline std::uint64_t id_in(const FileDescriptor& file) {
  std::uint64_t id = 0;
  return pread(file.get(), &id, sizeof(id), 0) == sizeof(id) ? id : 0;
}

// Knows the ids from 1 to `kKnownIds`.
inline DescriptorServer& server() {
  static auto& one = *new DescriptorServer([](std::uint64_t id, FileDescriptor* found) {
    *found = FileDescriptor(file_of(id));
    const bool is_full = id != 0 && id <= kKnownIds && found->get() < 0;
    return found->get() >= 0 ? DescriptorStatus::kSent
           : is_full         ? DescriptorStatus::kFull
                             : DescriptorStatus::kReleased;
  });
  return one;
}

inline std::uint64_t ask_for(const ServerAddress& address, std::uint64_t id) {
  return id_in(DescriptorClient(address).request(std::array{id}).at(0));
}

// The message of the exception; empty if there was none. The sanitizer would check its type with a
// descriptor, which a limit may refuse.
template <typename Call>
__attribute__((no_sanitize("vptr"))) std::string error_of(Call call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

// A peer that does not follow the protocol.
class RawPeer {
 public:
  explicit RawPeer(const ServerAddress& address) : connection_(open_unix_socket(0)) {
    if (!connect_abstract(connection_.get(), address.name)) {
      throw std::runtime_error("cannot connect");
    }
  }
  int get() const { return connection_.get(); }
  bool send(std::span<const std::byte> bytes) const {
    return send_message(connection_.get(), bytes, {});
  }
  bool ask(const DescriptorRequest& request, std::size_t ids) const {
    return send(std::as_bytes(std::span(&request, 1)).first(DescriptorRequest::bytes_with(ids)));
  }
  // Waits until the server has answered or closed the connection.
  std::size_t answer_bytes() const {
    std::array<std::byte, 256> bytes{};
    const ReceivedMessage message = receive_message(connection_.get(), bytes);
    return message.size < 0 ? 0 : static_cast<std::size_t>(message.size);
  }
  bool is_open() const {
    pollfd polled{connection_.get(), POLLIN, 0};
    return poll(&polled, 1, 0) == 0;
  }

 private:
  const FileDescriptor connection_;
};

// The open descriptors of this process, after the server has closed all connections that ended
// before: it answers in the order of arrival.
inline std::size_t open_descriptors() {
  const RawPeer last(server().address());
  last.send(std::array{std::byte{0}});
  (void)last.answer_bytes();
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

inline DescriptorRequest request_for(const ServerAddress& address, std::uint64_t id) {
  DescriptorRequest request;
  request.key = address.request_key;
  request.ids[0] = id;
  return request;
}

}  // namespace ferro
