// Modules, libraries and functions: names, and for which architecture their code is.
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
  const void* unread = nullptr;  // an image that stays, until somebody asks for its parameters
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
  // Null for a handle that no module gave out.
  Function* find_function(const void* handle) const;
  // Empty where they are not known. The first question about a module of nvcc's reads its code.
  const Parameters& parameters_of(const Function& function);
  // Is it a stand-in of a matrix product, `kProductKernel`? Its first argument is a `Product`.
  bool is_product(const void* function) const { return products_.contains(function); }
  // Of a kernel of PyTorch that writes one constant everywhere, the bytes of that, else 0. Its
  // arguments are the number of elements, the constant and the address.
  std::size_t constant_bytes_of(const void* function) const {
    const auto found = constant_bytes_.find(function);
    return found == constant_bytes_.end() ? 0 : found->second;
  }
  // What a thread of that function takes, by its name: see `thread_bytes`.
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
  std::unordered_map<const void*, double> bytes_of_thread_;  // those that differ
};

}  // namespace ferro::sim
