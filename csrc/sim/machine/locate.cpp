#include "sim/machine/locate.h"

#include <algorithm>
#include <cstring>

namespace ferro::sim {

std::size_t copy_text(const std::string& text, char* buffer, std::size_t size) {
  if (buffer != nullptr && size > 0) {
    const std::size_t copied = std::min(text.size(), size - 1);
    std::memcpy(buffer, text.data(), copied);
    buffer[copied] = '\0';
  }
  return text.size();
}

bool locate(Machine& machine, CUdeviceptr at, std::size_t bytes, std::vector<Segment>& segments) {
  while (bytes > 0) {
    CUdeviceptr base = 0;
    const auto* mapping = machine.space().find_mapping(at, &base);
    if (mapping == nullptr) {
      return false;
    }
    const std::size_t skipped = at - base;
    const std::size_t piece = std::min(bytes, mapping->bytes() - skipped);
    const auto& pages = *mapping->pages;
    segments.push_back({&pages.memory(), pages.device(), pages.offset() + skipped, piece});
    at += piece;
    bytes -= piece;
  }
  return true;
}

}  // namespace ferro::sim
