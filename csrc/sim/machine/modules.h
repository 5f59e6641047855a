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
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace ferro::sim {

struct Module;

struct Function {
  std::string name;
  Module* module = nullptr;
  std::map<CUfunction_attribute, int> attributes;
};

struct Module {
  ImageVersions versions;
  const void* unread = nullptr;  // a permanent image whose parameters were not read yet
  std::unordered_map<std::string, Parameters> parameters;  // by kernel
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
  // Empty if they are unknown. The first call for a module that nvcc's output registered reads its
  // code.
  const Parameters& parameters_of(const Function& function);
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
  std::unordered_set<const void*> products_;
  std::unordered_map<const void*, std::size_t> constant_bytes_;
  std::unordered_map<const void*, double> bytes_of_thread_;  // other than kThreadBytes
};

}  // namespace ferro::sim
