// Modules, libraries and functions: their names, and the architectures of their code.
//
// Guarded by the machine's lock. A function is one object per (module, name), so that programs that
// compare handles find them equal.
#pragma once

#include "sim/machine/cubin.h"
#include "sim/machine/image.h"
#include "sim/streams/durations.h"

#include <cuda.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace ferro::sim {

struct Module;

struct Function {
  std::string name;
  Module* module = nullptr;
  std::map<CUfunction_attribute, int> attributes;
  // By parameter, from the first launch that asks on: see mangled.h.
  std::optional<std::vector<bool>> to_constants;
};

struct Module {
  ImageVersions versions;
  const void* unread = nullptr;  // a permanent image whose parameters were not read yet
  std::unordered_map<std::string, Parameters> parameters;  // by kernel; others are unknown
  std::map<std::string, std::unique_ptr<Function>> functions;
  std::map<std::string, CUdeviceptr> globals;
};

class Modules {
 public:
  // Null when no code of the image runs on a card of that capability, 10 * major + minor.
  Module* load(const void* image, int capability);
  bool unload(Module* module);
  Module* find(const void* handle) const;
  Function* function(Module& module, const std::string& name);
  // Null for an unknown handle.
  Function* find_function(const void* handle) const;
  // Null if they are unknown. The first call for a module that nvcc's output registered reads its
  // code.
  const Parameters* find_parameters(const Function& function);
  // The same, empty if they are unknown.
  const Parameters& parameters_of(const Function& function) {
    static const Parameters kNone;
    const Parameters* const found = find_parameters(function);
    return found == nullptr ? kNone : *found;
  }
  // Whether the kernel's parameter is one through which it writes nothing.
  bool is_read_only(Function& function, std::size_t parameter);
  // Addresses of the variables of all code, each of which is an allocation of the driver. Any kernel
  // may write to them.
  void add_variable(CUdeviceptr at) { variables_.push_back(at); }
  const std::vector<CUdeviceptr>& variables() const { return variables_; }
  // Is it the stand-in for a matrix product, `kProductKernel`? Its first argument is a `Product`.
  bool is_product(const void* function) const { return products_.contains(function); }
  // The size of the constant that a fill kernel of PyTorch writes, or 0 for other kernels. A fill
  // kernel's arguments are the number of elements, the constant and the address.
  std::size_t constant_bytes_of(const void* function) const {
    const auto found = constant_bytes_.find(function);
    return found == constant_bytes_.end() ? 0 : found->second;
  }
  // The bytes that a thread of the function reads and writes, by its name: see `thread_bytes`.
  double bytes_of_thread(const void* function) const {
    const auto found = bytes_of_thread_.find(function);
    return found == bytes_of_thread_.end() ? kThreadBytes : found->second;
  }

 private:
  int capability_ = 0;
  std::unordered_map<const Module*, std::unique_ptr<Module>> modules_;
  std::unordered_map<const void*, Function*> functions_;  // of all modules
  std::vector<CUdeviceptr> variables_;
  std::unordered_set<const void*> products_;
  std::unordered_map<const void*, std::size_t> constant_bytes_;
  std::unordered_map<const void*, double> bytes_of_thread_;  // other than kThreadBytes
};

}  // namespace ferro::sim
