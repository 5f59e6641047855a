#include "sim/libraries/nccl/transfer.h"

#include <algorithm>

namespace ferro::sim::nccl {
namespace {

// Device memory, or an absent part.
struct Part {
  std::uint64_t address = 0;
  std::size_t bytes = 0;
};

bool is_reduction(Call call) {
  return call == Call::kAllReduce || call == Call::kReduce || call == Call::kReduceScatter;
}

std::size_t size_of(const Transfer& transfer) {
  return transfer.terms.count * bytes_of(transfer.terms.type);
}

// The memory that `rank` of a communicator sends to `to`.
std::optional<Part> given(const Transfer& transfer, int rank, int to) {
  const std::size_t bytes = size_of(transfer);
  const Part whole{transfer.from, bytes};
  const Part slice{transfer.from + static_cast<std::size_t>(to) * bytes, bytes};
  const bool to_root = to == transfer.terms.root;
  const bool from_root = rank == transfer.terms.root;
  switch (transfer.terms.call) {
    case Call::kAllReduce:
    case Call::kAllGather:
      return whole;
    case Call::kReduceScatter:
    case Call::kAllToAll:
      return slice;
    case Call::kReduce:
    case Call::kGather:
      return to_root ? std::optional(whole) : std::nullopt;
    case Call::kBroadcast:
      return from_root ? std::optional(whole) : std::nullopt;
    case Call::kScatter:
      return from_root ? std::optional(slice) : std::nullopt;
    case Call::kSend:
      return to == transfer.peer ? std::optional(whole) : std::nullopt;
    default:
      return std::nullopt;
  }
}

// The memory where `rank` stores the bytes from `from`; for reductions, the result.
std::optional<Part> taken(const Transfer& transfer, int rank, int from) {
  const std::size_t bytes = size_of(transfer);
  const Part whole{transfer.to, bytes};
  const Part slice{transfer.to + static_cast<std::size_t>(from) * bytes, bytes};
  const bool to_root = rank == transfer.terms.root;
  const bool from_root = from == transfer.terms.root;
  switch (transfer.terms.call) {
    case Call::kAllReduce:
    case Call::kReduceScatter:
      return whole;
    case Call::kAllGather:
    case Call::kAllToAll:
      return slice;
    case Call::kReduce:
      return to_root ? std::optional(whole) : std::nullopt;
    case Call::kGather:
      return to_root ? std::optional(slice) : std::nullopt;
    case Call::kBroadcast:
    case Call::kScatter:
      return from_root ? std::optional(whole) : std::nullopt;
    case Call::kReceive:
      return from == transfer.peer ? std::optional(whole) : std::nullopt;
    default:
      return std::nullopt;
  }
}

// A receiver expects the sender's terms.
Terms terms_of(const Transfer& transfer) {
  Terms terms = transfer.terms;
  terms.call = terms.call == Call::kReceive ? Call::kSend : terms.call;
  return terms;
}

Place place_of(const Transfer& transfer, int from, std::uint64_t repetition) {
  const bool between_two = transfer.peer >= 0;
  return {from, between_two ? Place::kPointToPoint : Place::kCollective, transfer.sequence,
          repetition};
}

// False if the memory is not mapped.
bool read_part(const Transfer& transfer, const Part& part, Message& message) {
  const std::int64_t count = ferro_sim_uncertain(part.address, part.bytes, nullptr, 0);
  if (count < 0) {
    return false;
  }
  message.identity = ferro_sim_identity(part.address, part.bytes);
  if (part.bytes > (count == 0 ? kMovedKnownBytes : kMovedBytes)) {
    message.uncertain = {{0, part.bytes, FERRO_SIM_UNKNOWN}};
    return true;
  }
  message.bytes.resize(part.bytes);
  ferro_sim_take(part.address, message.bytes.data(), part.bytes);
  // Bytes that ferro_sim_take could not compute are unknown now.
  message.uncertain.resize(
      static_cast<std::size_t>(ferro_sim_uncertain(part.address, part.bytes, nullptr, 0)));
  ferro_sim_uncertain(part.address, part.bytes, message.uncertain.data(), message.uncertain.size());
  if (transfer.scaling) {
    Scaling scaling = *transfer.scaling;
    const std::size_t bytes = bytes_of(scaling.type);
    if (scaling.address != 0 && ferro_sim_take(scaling.address, scaling.value, bytes) < 0) {
      return false;
    }
    scale(transfer.terms.type, message.bytes.data(), transfer.terms.count, scaling);
  }
  return true;
}

Failure unmapped(const Transfer& transfer) {
  return {ncclUnhandledCudaError,
          "memory of " + to_string(transfer.terms) + " was not mapped when the operation ran"};
}

using Messages = std::vector<std::shared_ptr<const Message>>;

// The reduced message of all ranks, as if from one rank.
Message reduced(const Transfer& transfer, const Messages& messages) {
  Message result;
  std::vector<const std::byte*> sources;
  // All ranks have the messages in the same order.
  result.identity = transfer.terms.count;
  for (const auto& message : messages) {
    result.uncertain.insert(result.uncertain.end(), message->uncertain.begin(),
                            message->uncertain.end());
    result.identity = result.identity * 0x9e3779b97f4a7c15 + message->identity + 1;
    if (!message->bytes.empty()) {
      sources.push_back(message->bytes.data());
    }
  }
  if (sources.size() == messages.size()) {
    result.bytes.resize(size_of(transfer));
    reduce(transfer.terms.type, transfer.terms.reduction, sources, transfer.terms.count,
           result.bytes.data());
  }
  return result;
}

}  // namespace

std::string to_string(const Terms& terms) {
  constexpr const char* kNames[] = {"AllReduce",     "Broadcast", "Reduce",   "AllGather",
                                    "ReduceScatter", "AlltoAll",  "Gather",   "Scatter",
                                    "Send",          "Recv",      "CommSplit"};
  constexpr const char* kReductions[] = {" (sum)", " (product)", " (max)", " (min)", " (average)"};
  std::string text = kNames[static_cast<int>(terms.call)];
  if (terms.call != Call::kSplit) {
    text += " of " + std::to_string(terms.count) + " " + std::string(name_of(terms.type));
  }
  if (terms.reduction >= 0) {
    text += kReductions[terms.reduction];
  }
  return terms.root < 0 ? text : text + " with root " + std::to_string(terms.root);
}

bool gives(const Transfer& transfer) { return transfer.terms.call != Call::kReceive; }
bool takes(const Transfer& transfer) { return transfer.terms.call != Call::kSend; }

void contribute(Communicator& communicator, Transfer& transfer) {
  const std::uint64_t repetition = transfer.contributed++;
  const bool contents = ferro_sim_has_contents() != 0;
  std::shared_ptr<Message> message;
  std::uint64_t in_message = 0;
  for (int to = 0; to < communicator.ranks(); ++to) {
    const auto part = given(transfer, communicator.rank(), to);
    if (!part) {
      continue;
    }
    // Most operations send the same to all.
    if (message == nullptr || in_message != part->address) {
      in_message = part->address;
      message = std::make_shared<Message>();
      message->place = place_of(transfer, communicator.rank(), repetition);
      message->terms = terms_of(transfer);
      if (contents && part->bytes > 0 && !read_part(transfer, *part, *message)) {
        communicator.fail(unmapped(transfer));
        return;
      }
    }
    communicator.send(to, message);
  }
}

void complete(Communicator& communicator, Transfer& transfer) {
  const std::uint64_t repetition = transfer.completed++;
  const int rank = communicator.rank();
  Messages messages;
  std::vector<Part> parts;
  std::vector<bool> in_place;
  for (int from = 0; from < communicator.ranks(); ++from) {
    if (const auto part = taken(transfer, rank, from)) {
      messages.push_back(
          communicator.take(place_of(transfer, from, repetition), terms_of(transfer)));
      if (messages.back() == nullptr) {
        return;
      }
      parts.push_back(*part);
      const auto own = given(transfer, rank, is_reduction(transfer.terms.call) ? rank : from);
      in_place.push_back(own && own->address == part->address);
    }
  }
  if (parts.empty() || parts.front().bytes == 0 || ferro_sim_has_contents() == 0) {
    return;
  }
  if (is_reduction(transfer.terms.call)) {
    messages = {std::make_shared<Message>(reduced(transfer, messages))};
    parts.resize(1);
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Message& message = *messages[i];
    // A message without bytes writes zeros, or in place leaves the bytes.
    const std::byte* bytes = message.bytes.empty() ? nullptr : message.bytes.data();
    if (ferro_sim_put(parts[i].address, bytes, parts[i].bytes, in_place[i] ? 1 : 0,
                      message.uncertain.data(), message.uncertain.size(), message.identity) != 0) {
      communicator.fail(unmapped(transfer));
      return;
    }
  }
}

}  // namespace ferro::sim::nccl
