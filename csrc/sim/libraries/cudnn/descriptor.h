// A descriptor of cuDNN's graph interface: attributes, each an array of values or of other
// descriptors.
//
// Not thread-safe. An attribute shares the descriptors that it holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cudnn.h>
#include <map>
#include <memory>
#include <vector>

namespace ferro::sim {

class Descriptor {
 public:
  struct Attribute {
    cudnnBackendAttributeType_t type = CUDNN_TYPE_INT64;
    std::int64_t count = 0;
    std::vector<std::byte> bytes;
    std::vector<std::shared_ptr<const Descriptor>> descriptors;
  };

  explicit Descriptor(cudnnBackendDescriptorType_t type) : type_(type) {}

  cudnnBackendDescriptorType_t type() const { return type_; }
  void set(cudnnBackendAttributeName_t name, Attribute attribute);
  // Null when the attribute was not set.
  const Attribute* find(cudnnBackendAttributeName_t name) const;

  // The values of an attribute; empty when it was not set, or is of another type.
  std::vector<std::int64_t> integers(cudnnBackendAttributeName_t name) const;
  std::vector<const void*> pointers(cudnnBackendAttributeName_t name) const;
  // The first of an attribute's descriptors; null when it was not set.
  const Descriptor* first(cudnnBackendAttributeName_t name) const;

  // Of a graph: whether a plan was made whose engine uses tensor cores. Its plans share it as const.
  void note_tensor_cores() const { has_plan_with_tensor_cores_ = true; }
  bool has_plan_with_tensor_cores() const { return has_plan_with_tensor_cores_; }

 private:
  template <typename Value>
  std::vector<Value> values(cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type) const;

  cudnnBackendDescriptorType_t type_;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes_;
  mutable bool has_plan_with_tensor_cores_ = false;
};

// Bytes of one value.
std::size_t size_of(cudnnBackendAttributeType_t type);

}  // namespace ferro::sim
