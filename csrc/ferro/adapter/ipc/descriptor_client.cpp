#include "ferro/adapter/ipc/descriptor_client.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <stdexcept>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <utility>

namespace ferro {
namespace {

void set_timeout(int socket, std::chrono::milliseconds patience) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(patience);
  const timeval timeout{seconds.count(), std::chrono::microseconds(patience - seconds).count()};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
}

std::runtime_error no_answer(std::chrono::milliseconds patience) {
  return std::runtime_error("no answer within " + std::to_string(patience.count() / 1000) +
                            " s; the process that shared it is stopped, or may open no more file "
                            "descriptors (ulimit -n)");
}

// Root may open memory of any user; other users only their own.
bool is_trusted(const PeerCredentials& peer) { return peer.user == geteuid() || geteuid() == 0; }

std::runtime_error wrong_process() {
  return std::runtime_error("the process that answers there is not the one that shared it");
}

void check_answer(const DescriptorAnswer& answer, std::size_t bytes, const SharingKey& key) {
  if (bytes != sizeof(answer) || !is_equal(answer.key, key)) {
    throw wrong_process();
  }
  switch (answer.status) {
    case DescriptorStatus::kSent:
      return;
    case DescriptorStatus::kReleased:
      throw std::runtime_error("the process that shared the memory has released it since");
    case DescriptorStatus::kBusy:
      throw OutOfDescriptors(
          "the kernel passes no more file descriptors for this user now: too many are in transit "
          "to "
          "processes that do not receive them");
    case DescriptorStatus::kFull:
      throw OutOfDescriptors(
          "the process that shared the memory may open no more file descriptors (ulimit -n)");
    case DescriptorStatus::kRefused:
      throw std::runtime_error(
          "the driver of the process that shared the memory makes no file descriptor of it "
          "(cuMemExportToShareableHandle); a failed kernel there is the usual reason");
  }
  throw std::runtime_error("the answer has an unknown status");
}

}  // namespace

DescriptorClient::DescriptorClient(ServerAddress address, std::chrono::milliseconds patience)
    : address_(std::move(address)), patience_(patience), connection_(open_unix_socket(0)) {
  if (connection_.get() < 0) {
    throw failure_of("socket");
  }
  set_timeout(connection_.get(), patience_);
  if (!connect_abstract(connection_.get(), address_.name)) {
    if (errno == ECONNREFUSED) {
      throw std::runtime_error(
          "no process listens there: the process that shared it has ended, or runs in another "
          "network "
          "namespace");
    }
    throw errno == EAGAIN ? no_answer(patience_) : failure_of("connect");
  }
  peer_ = peer_of(connection_.get());
  if (!is_trusted(peer_)) {
    throw std::runtime_error("a process of another user answers there");
  }
}

std::vector<FileDescriptor> DescriptorClient::request(std::span<const std::uint64_t> ids) {
  if (ids.empty() || ids.size() > kMaxDescriptors) {
    throw std::runtime_error("a handle of " + std::to_string(ids.size()) +
                             " pieces; expected between 1 and " + std::to_string(kMaxDescriptors));
  }
  DescriptorRequest request;
  request.key = address_.request_key;
  std::memcpy(request.ids.data(), ids.data(), ids.size_bytes());
  const auto bytes = std::as_bytes(std::span(&request, 1));
  // A server without room for this connection may have closed it already.
  if (!send_message(connection_.get(), bytes.first(DescriptorRequest::bytes_with(ids.size())),
                    {}) &&
      errno != EPIPE && errno != ECONNRESET) {
    throw failure_of("send");
  }
  DescriptorAnswer answer;
  ReceivedMessage message =
      receive_message(connection_.get(), std::as_writable_bytes(std::span(&answer, 1)));
  if (message.size < 0 && errno == EAGAIN) {
    throw no_answer(patience_);
  }
  if (message.size <= 0) {
    throw std::runtime_error(
        "the connection was closed without an answer: the process ended meanwhile, refused the "
        "handle, or has too many connections");
  }
  check_answer(answer, static_cast<std::size_t>(message.size), address_.answer_key);
  if (message.descriptors.size() != ids.size()) {
    throw OutOfDescriptors("this process has no room for " + std::to_string(ids.size()) +
                           " more file descriptors (ulimit -n)");
  }
  return std::move(message.descriptors);
}

namespace {

// The most that are open at a time.
constexpr std::size_t kDescriptorsAtATime = 32;

std::vector<FileDescriptor> ask_server(const IpcHandle& handle, std::span<const IpcUnit> units,
                                       PeerProcesses& peers) {
  std::vector<std::uint64_t> ids;
  for (const IpcUnit& unit : units) {
    ids.push_back(unit.id);
  }
  DescriptorClient server(handle.server);
  // Checked after connecting: if the number still belongs to that process, it did so then.
  if (is_in_this_namespace(handle.from) &&
      (server.server_process() != handle.from.process || !peers.is_running(handle.from))) {
    throw wrong_process();
  }
  return server.request(ids);
}

// The descriptors of some of the units.
std::vector<FileDescriptor> receive(const IpcHandle& handle, std::span<const IpcUnit> units,
                                    PeerProcesses& peers) {
  std::string why = "the process that shared it keeps no file descriptor of each handle";
  std::vector<int> numbers;
  if (std::ranges::all_of(units, [](const IpcUnit& unit) { return unit.descriptor >= 0; })) {
    std::ranges::transform(units, std::back_inserter(numbers), &IpcUnit::descriptor);
  }
  try {
    // Called without numbers too, because it detects that the process has ended.
    std::vector<FileDescriptor> taken = peers.take(handle.from, numbers);
    if (!numbers.empty()) {
      return taken;
    }
  } catch (const ProcessEnded&) {
    throw;
  } catch (const OutOfDescriptors&) {
    throw;
  } catch (const std::runtime_error& error) {
    why = error.what();
  }
  if (handle.server.name.empty()) {
    throw std::runtime_error(
        why +
        ". Allow this process to trace the other one (CAP_SYS_PTRACE, "
        "kernel.yama.ptrace_scope=0), or share from a process that runs ferro_alloc");
  }
  try {
    return ask_server(handle, units, peers);
  } catch (const OutOfDescriptors&) {
    throw;
  } catch (const std::runtime_error& error) {
    if (is_in_this_namespace(handle.from) && !peers.is_running(handle.from)) {
      throw ProcessEnded("the process that shared it has ended");
    }
    throw std::runtime_error(why + "; and over its socket: " + error.what() +
                             ". Both processes must run in one network namespace under one user");
  }
}

}  // namespace

void receive_descriptors(const IpcHandle& handle, PeerProcesses& peers, const UseDescriptor& use) {
  std::span<const IpcUnit> left = handle.units;
  std::size_t at_a_time = kDescriptorsAtATime;
  while (!left.empty()) {
    const std::span<const IpcUnit> part = left.first(std::min(at_a_time, left.size()));
    std::vector<FileDescriptor> received;
    try {
      received = receive(handle, part, peers);
    } catch (const OutOfDescriptors&) {
      if (part.size() == 1) {
        throw;
      }
      at_a_time = part.size() / 2;
      continue;
    }
    for (std::size_t i = 0; i < part.size(); ++i) {
      use(part[i], received[i]);
    }
    left = left.subspan(part.size());
  }
}

}  // namespace ferro
