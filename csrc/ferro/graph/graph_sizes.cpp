#include "ferro/graph/graph_sizes.h"

namespace ferro {

GraphSizes sizes_of_graph(const CapturedRanges& captures, std::uint64_t capture,
                          std::span<const BlockView> live) {
  const auto found = captures.find(capture);
  if (found == captures.end()) {
    return {};
  }
  const AddressRanges& mine = found->second;
  AddressRanges others;
  for (const auto& [other, ranges] : captures) {
    if (other != capture) {
      others.unite(ranges);
    }
  }
  AddressRanges in_use;
  for (const BlockView& block : live) {
    in_use.add(block.ptr, block.size);
  }
  const std::size_t bytes = mine.bytes();
  GraphSizes sizes;
  sizes.shared_bytes = mine.intersection(others).bytes();
  sizes.private_bytes = bytes - sizes.shared_bytes;
  sizes.live_bytes = mine.intersection(in_use).bytes();
  sizes.scratch_bytes = bytes - sizes.live_bytes;
  return sizes;
}

std::size_t shared_bytes_of(const CapturedRanges& captures) {
  AddressRanges seen;
  AddressRanges shared;
  for (const auto& [capture, ranges] : captures) {
    shared.unite(seen.intersection(ranges));
    seen.unite(ranges);
  }
  return shared.bytes();
}

}  // namespace ferro
