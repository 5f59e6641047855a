#include "sim/instruments/faults.h"

namespace ferro::sim {
namespace {

bool names_function(std::string_view given, std::string_view symbol) {
  if (!symbol.starts_with(given)) {
    return false;
  }
  const std::string_view suffix = symbol.substr(given.size());
  return suffix.empty() || (suffix.size() == 3 && suffix.starts_with("_v"));
}

bool is_due(const Fault& fault, std::uint64_t call, std::size_t bytes) {
  switch (fault.when) {
    case Fault::When::kCall:
      return call == fault.value;
    case Fault::When::kAfterCalls:
      return call > fault.value;
    case Fault::When::kBytes:
      return bytes >= fault.value;
  }
  return false;
}

}  // namespace

std::optional<CUresult> FaultPlan::check(FunctionId function, std::size_t bytes) {
  if (entries_.empty()) {
    return std::nullopt;
  }
  std::optional<CUresult> result;
  const std::string_view symbol = function_name(function);
  for (Entry& entry : entries_) {
    if (names_function(entry.fault.function, symbol) && is_due(entry.fault, ++entry.calls, bytes) &&
        !result) {
      result = entry.fault.result;
    }
  }
  injected_ += result ? 1 : 0;
  return result;
}

}  // namespace ferro::sim
