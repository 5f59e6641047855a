#include "sim/machine/mangled.h"

#include <cstdlib>
#include <cxxabi.h>
#include <memory>
#include <string_view>

namespace ferro::sim {
namespace {

std::string demangled(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && name != nullptr ? name.get() : "";
}

// "int const*, int*" of "void count<int>(int const*, int*)". Empty for other names.
std::string_view parameters_of(std::string_view name) {
  if (!name.ends_with(')')) {
    return {};
  }
  int open = 0;
  for (std::size_t at = name.size(); at-- > 0;) {
    open += name[at] == ')' ? 1 : name[at] == '(' ? -1 : 0;
    if (open == 0) {
      return name.substr(at + 1, name.size() - at - 2);
    }
  }
  return {};
}

std::vector<std::string_view> split(std::string_view parameters) {
  std::vector<std::string_view> found;
  int open = 0;
  std::size_t begin = 0;
  for (std::size_t at = 0; at <= parameters.size(); ++at) {
    const char here = at < parameters.size() ? parameters[at] : ',';
    if (here == ',' && (open == 0 || at == parameters.size())) {
      found.push_back(parameters.substr(begin, at - begin));
      begin = at + 1;
    } else if (std::string_view("(<[{").find(here) != std::string_view::npos) {
      ++open;
    } else if (std::string_view(")>]}").find(here) != std::string_view::npos) {
      --open;
    }
  }
  return found;
}

}  // namespace

std::vector<bool> pointers_to_constants(const std::string& mangled, std::size_t count) {
  const std::string name = demangled(mangled);
  const std::vector<std::string_view> types = split(parameters_of(name));
  std::vector<bool> found(count);
  for (std::size_t i = 0; types.size() == count && i < count; ++i) {
    found[i] = types[i].ends_with(" const*") && types[i].find('*') + 1 == types[i].size();
  }
  return found;
}

}  // namespace ferro::sim
