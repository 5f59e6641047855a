#include "ferro/adapter/sharing/descriptor_client.h"

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <utility>

namespace ferro {
namespace {

std::runtime_error failure(const char* call) {
  return std::runtime_error(std::string(call) + ": " + std::strerror(errno));
}

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

// Root may open what any user shared; others are answered by their own processes only.
bool is_trusted(const PeerCredentials& peer) { return peer.user == geteuid() || geteuid() == 0; }

void check_answer(const DescriptorAnswer& answer, std::size_t bytes, const SharingKey& key) {
  if (bytes != sizeof(answer) || !is_equal(answer.key, key)) {
    throw std::runtime_error("another process than the one that shared it answers there");
  }
  switch (answer.status) {
    case DescriptorStatus::kSent:
      return;
    case DescriptorStatus::kGivenBack:
      throw std::runtime_error("the process that shared the memory has given it back since");
    case DescriptorStatus::kBusy:
      throw std::runtime_error(
          "the kernel passes no more file descriptors for this user now: others are on their way "
          "to processes that do not take them");
    case DescriptorStatus::kFull:
      throw std::runtime_error(
          "the process that shared the memory may open no more file descriptors (ulimit -n)");
  }
  throw std::runtime_error("the answer has an unknown status");
}

}  // namespace

DescriptorClient::DescriptorClient(ServerAddress address, std::chrono::milliseconds patience)
    : address_(std::move(address)), patience_(patience), connection_(open_unix_socket(0)) {
  if (connection_.get() < 0) {
    throw failure("socket");
  }
  set_timeout(connection_.get(), patience_);
  if (!connect_abstract(connection_.get(), address_.name)) {
    if (errno == ECONNREFUSED) {
      throw std::runtime_error(
          "nobody answers there: the process that shared it has ended, or runs in another network "
          "namespace");
    }
    throw errno == EAGAIN ? no_answer(patience_) : failure("connect");
  }
  peer_ = peer_of(connection_.get());
  if (!is_trusted(peer_)) {
    throw std::runtime_error("a process of another user answers there");
  }
}

std::vector<FileDescriptor> DescriptorClient::ask(std::span<const std::uint64_t> ids) {
  if (ids.empty() || ids.size() > kMaxDescriptors) {
    throw std::runtime_error("a handle of " + std::to_string(ids.size()) +
                             " pieces; between 1 and " + std::to_string(kMaxDescriptors) +
                             " can be asked for");
  }
  DescriptorRequest request;
  request.key = address_.request_key;
  std::memcpy(request.ids.data(), ids.data(), ids.size_bytes());
  const auto bytes = std::as_bytes(std::span(&request, 1));
  // A server without room for this connection may have closed it already.
  if (!send_message(connection_.get(), bytes.first(DescriptorRequest::bytes_with(ids.size())),
                    {}) &&
      errno != EPIPE && errno != ECONNRESET) {
    throw failure("send");
  }
  DescriptorAnswer answer;
  ReceivedMessage message =
      receive_message(connection_.get(), std::as_writable_bytes(std::span(&answer, 1)));
  if (message.size < 0 && errno == EAGAIN) {
    throw no_answer(patience_);
  }
  if (message.size <= 0) {
    throw std::runtime_error(
        "the connection was closed without an answer: it ended meanwhile, refused the handle, or "
        "has too many connections");
  }
  check_answer(answer, static_cast<std::size_t>(message.size), address_.answer_key);
  if (message.descriptors.size() != ids.size()) {
    throw std::runtime_error("this process has no room for " + std::to_string(ids.size()) +
                             " more file descriptors (ulimit -n)");
  }
  return std::move(message.descriptors);
}

namespace {

std::vector<FileDescriptor> ask_server(const IpcHandle& handle, PeerProcesses& peers) {
  std::vector<std::uint64_t> ids;
  for (const IpcUnit& unit : handle.units) {
    ids.push_back(unit.id);
  }
  DescriptorClient server(handle.server);
  // Asked after connecting: its number was nobody else's then if it is its own still.
  if (is_in_this_namespace(handle.from) &&
      (server.server_process() != handle.from.process || !peers.is_running(handle.from))) {
    throw std::runtime_error("another process than the one that shared it answers there");
  }
  return server.ask(ids);
}

}  // namespace

std::vector<FileDescriptor> receive_descriptors(const IpcHandle& handle, PeerProcesses& peers) {
  std::vector<int> numbers;
  for (const IpcUnit& unit : handle.units) {
    numbers.push_back(unit.descriptor);
  }
  std::string why;
  try {
    return peers.take(handle.from, numbers);
  } catch (const ProcessEnded&) {
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
    return ask_server(handle, peers);
  } catch (const std::runtime_error& error) {
    if (is_in_this_namespace(handle.from) && !peers.is_running(handle.from)) {
      throw ProcessEnded("the process that shared it has ended");
    }
    throw std::runtime_error(why + "; and over its socket: " + error.what() +
                             ". Both processes must run in one network namespace under one user");
  }
}

}  // namespace ferro
