#include "sim/libraries/cudnn/descriptor.h"

#include <cstring>
#include <utility>

namespace ferro::sim {

void Descriptor::set(cudnnBackendAttributeName_t name, Attribute attribute) {
  attributes_[name] = std::move(attribute);
}

const Descriptor::Attribute* Descriptor::find(cudnnBackendAttributeName_t name) const {
  const auto found = attributes_.find(name);
  return found == attributes_.end() ? nullptr : &found->second;
}

template <typename Value>
std::vector<Value> Descriptor::values(cudnnBackendAttributeName_t name,
                                      cudnnBackendAttributeType_t type) const {
  const Attribute* const attribute = find(name);
  if (attribute == nullptr || attribute->type != type) return {};
  std::vector<Value> found(static_cast<std::size_t>(attribute->count));
  std::memcpy(found.data(), attribute->bytes.data(), attribute->bytes.size());
  return found;
}

std::vector<std::int64_t> Descriptor::integers(cudnnBackendAttributeName_t name) const {
  return values<std::int64_t>(name, CUDNN_TYPE_INT64);
}

std::vector<const void*> Descriptor::pointers(cudnnBackendAttributeName_t name) const {
  return values<const void*>(name, CUDNN_TYPE_VOID_PTR);
}

const Descriptor* Descriptor::first(cudnnBackendAttributeName_t name) const {
  const Attribute* const attribute = find(name);
  const bool none = attribute == nullptr || attribute->descriptors.empty();
  return none ? nullptr : attribute->descriptors.front().get();
}

std::size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    case CUDNN_TYPE_FRACTION:
      return sizeof(cudnnFraction_t);
    default:  // enumerations, floats and integers of 32 bits
      return 4;
  }
}

}  // namespace ferro::sim
