// Modules, libraries and functions: names without code.
//
// Guarded by the machine's lock. A function is one object per (module, name), so that programs that
// compare handles find them equal.
#pragma once

#include <cuda.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

namespace ferro::sim {

struct Module;

struct Function {
  std::string name;
  Module* module = nullptr;
  std::map<CUfunction_attribute, int> attributes;
};

struct Module {
  std::map<std::string, std::unique_ptr<Function>> functions;
  std::map<std::string, CUdeviceptr> globals;
};

class Modules {
 public:
  Module* load();
  bool unload(Module* module) { return modules_.erase(module) > 0; }
  Module* find(const void* handle) const;
  Function* function(Module& module, const std::string& name);
  // Null for a handle that no module gave out.
  Function* find_function(const void* handle) const;
  std::size_t count() const { return modules_.size(); }

 private:
  std::unordered_map<const Module*, std::unique_ptr<Module>> modules_;
};

}  // namespace ferro::sim
