#include "sim/machine/modules.h"

#include "sim/machine/mangled.h"

#include <string_view>
#include <utility>

namespace ferro::sim {
namespace {

// The size of the constant that a fill kernel writes, by its mangled name; 0 for every other
// kernel.
std::size_t constant_bytes(std::string_view kernel) {
  constexpr std::string_view kFunctor = "11FillFunctorI";
  const std::size_t at = kernel.find(kFunctor);
  if (at == std::string_view::npos ||
      kernel.find("vectorized_elementwise_kernel") == std::string_view::npos) {
    return 0;
  }
  const std::string_view type = kernel.substr(at + kFunctor.size());
  if (type.starts_with("N3c108BFloat16E") || type.starts_with("N3c104HalfE")) {
    return 2;
  }
  for (const auto& [letters, bytes] :
       {std::pair<std::string_view, std::size_t>{"bah", 1}, {"st", 2}, {"ijf", 4}, {"lmxyd", 8}}) {
    if (type.size() > 1 && type[1] == 'E' && letters.find(type[0]) != std::string_view::npos) {
      return bytes;
    }
  }
  return 0;
}

}  // namespace

Module* Modules::load(const void* image, int capability) {
  const auto versions = choose_code(image, capability);
  if (!versions) {
    return nullptr;
  }
  auto module = std::make_unique<Module>();
  module->versions = *versions;
  capability_ = capability;
  if (is_registered(image)) {
    module->unread = image;
  } else if (const auto code = find_code(image, capability)) {
    module->parameters = read_parameters(*code);
  }
  Module* loaded = module.get();
  modules_.emplace(loaded, std::move(module));
  return loaded;
}

bool Modules::unload(Module* module) {
  const auto is_of_module = [module](const void* function) {
    return static_cast<const Function*>(function)->module == module;
  };
  std::erase_if(products_, is_of_module);
  std::erase_if(functions_, [&](const auto& entry) { return is_of_module(entry.first); });
  std::erase_if(bytes_of_thread_, [&](const auto& entry) { return is_of_module(entry.first); });
  return modules_.erase(module) > 0;
}

Module* Modules::find(const void* handle) const {
  const auto found = modules_.find(static_cast<const Module*>(handle));
  return found == modules_.end() ? nullptr : found->second.get();
}

Function* Modules::function(Module& module, const std::string& name) {
  auto& slot = module.functions[name];
  if (slot == nullptr) {
    slot = std::make_unique<Function>();
    slot->name = name;
    slot->module = &module;
    functions_.emplace(slot.get(), slot.get());
    if (name == kProductKernel) {
      products_.insert(slot.get());
    }
    if (const std::size_t bytes = constant_bytes(name); bytes != 0) {
      constant_bytes_.emplace(slot.get(), bytes);
    }
    if (const double bytes = thread_bytes(name); bytes != kThreadBytes) {
      bytes_of_thread_.emplace(slot.get(), bytes);
    }
  }
  return slot.get();
}

const Parameters* Modules::find_parameters(const Function& function) {
  // cublas_lt/blas_operation.cpp passes these.
  static const Parameters kOfProduct = [] {
    Parameters parameters{{0, sizeof(Product)}};
    for (std::size_t at = sizeof(Product), i = 0; i < kProductPointers; ++i, at += sizeof(void*)) {
      parameters.push_back({at, sizeof(void*)});
    }
    return parameters;
  }();
  if (is_product(&function)) {
    return &kOfProduct;
  }
  Module& module = *function.module;
  if (const auto code = find_code(module.unread, capability_)) {
    module.parameters = read_parameters(*code);
  }
  module.unread = nullptr;
  const auto found = module.parameters.find(function.name);
  return found == module.parameters.end() ? nullptr : &found->second;
}

bool Modules::is_read_only(Function& function, std::size_t parameter) {
  if (is_product(&function)) {
    return parameter < kProductOperands;
  }
  if (!function.to_constants) {
    function.to_constants = pointers_to_constants(function.name, parameters_of(function).size());
  }
  return parameter < function.to_constants->size() && (*function.to_constants)[parameter];
}

Function* Modules::find_function(const void* handle) const {
  const auto found = functions_.find(handle);
  return found == functions_.end() ? nullptr : found->second;
}

}  // namespace ferro::sim
