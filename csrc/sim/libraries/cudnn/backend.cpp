// cuDNN's graph interface. Each convolution has an engine that needs a workspace, and one that
// needs none, for when memory is short. Convolutions of float32 have two more, without tensor cores,
// for callers that do not allow TF32. Nothing is computed.
//
// Graphs without a convolution are refused, as by a cuDNN that has no engine for them.
#include "sim/libraries/cuda/derived_workspaces.h"
#include "sim/libraries/cudnn/descriptor.h"
#include "sim/libraries/cudnn/handle.h"
#include "sim/libraries/cudnn/workspaces.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <optional>

namespace ferro::sim {
namespace {

// A cudnnBackendDescriptor_t points to this.
using Held = std::shared_ptr<Descriptor>;

Held& held(cudnnBackendDescriptor_t descriptor) { return *static_cast<Held*>(descriptor); }

std::int64_t element_size(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_DOUBLE:
    case CUDNN_DATA_INT64:
    case CUDNN_DATA_COMPLEX_FP32:
      return 8;
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32:
    case CUDNN_DATA_UINT32:
      return 4;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
      return 2;
    default:
      return 1;
  }
}

struct TensorShape {
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
  std::int64_t element = 4;
  bool is_half = false;

  std::int64_t places() const {
    return std::accumulate(sizes.begin() + 2, sizes.end(), std::int64_t{1}, std::multiplies<>());
  }
};

std::optional<TensorShape> tensor(const Descriptor* of) {
  if (of == nullptr) return std::nullopt;
  TensorShape shape{of->integers(CUDNN_ATTR_TENSOR_DIMENSIONS),
                    of->integers(CUDNN_ATTR_TENSOR_STRIDES)};
  if (shape.sizes.size() < 3 || shape.strides.size() != shape.sizes.size()) return std::nullopt;
  if (const auto* const type = of->find(CUDNN_ATTR_TENSOR_DATA_TYPE)) {
    cudnnDataType_t value = CUDNN_DATA_FLOAT;
    std::memcpy(&value, type->bytes.data(), sizeof value);
    shape.element = element_size(value);
    shape.is_half = value == CUDNN_DATA_HALF;
  }
  return shape;
}

struct Convolution {
  ConvolutionShape shape;
  Pass pass = Pass::kForward;
};

struct Names {
  cudnnBackendDescriptorType_t type;
  Pass pass;
  cudnnBackendAttributeName_t images, results, weights, geometry;
};

constexpr Names kConvolutions[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, Pass::kForward,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, Pass::kInputGradient,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, Pass::kWeightGradient,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC},
};

using Numbers = std::vector<std::int64_t>;

// Of images, window, strides, paddings and dilations, one number for each dimension.
void set_sizes(ConvolutionShape& shape, const std::array<Numbers, 5>& numbers) {
  ConvolutionShape::Sizes* const all[] = {&shape.size, &shape.window, &shape.stride, &shape.padding,
                                          &shape.dilation};
  shape.dimensions = static_cast<int>(std::min<std::size_t>(numbers[0].size(), 3));
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    std::copy_n(numbers[i].begin(), std::min<std::size_t>(numbers[i].size(), 3), all[i]->begin());
  }
  // PyTorch runs a convolution of one dimension as one of images with a single row.
  const bool single_row = shape.dimensions == 2 && shape.size[0] == 1 && shape.window[0] == 1 &&
                          shape.stride[0] == 1 && shape.padding[0] == 0;
  if (!single_row || shape.channels_last) return;
  shape.dimensions = 1;
  for (ConvolutionShape::Sizes* const sizes : all) std::swap((*sizes)[0], (*sizes)[1]);
}

std::optional<Convolution> convolution(const Descriptor& operation) {
  for (const Names& names : kConvolutions) {
    if (operation.type() != names.type) continue;
    const auto images = tensor(operation.first(names.images));
    const auto results = tensor(operation.first(names.results));
    const auto weights = tensor(operation.first(names.weights));
    const Descriptor* const geometry = operation.first(names.geometry);
    if (!images || !results || !weights || geometry == nullptr) return std::nullopt;
    ConvolutionShape shape;
    shape.images = images->sizes[0];
    shape.inputs = images->sizes[1];
    shape.outputs = results->sizes[1];
    shape.groups = shape.inputs / std::max<std::int64_t>(weights->sizes[1], 1);
    shape.element = images->element;
    shape.is_half = images->is_half;
    // With one channel both layouts are the same.
    shape.channels_last =
        shape.inputs > 1 ? images->strides[1] == 1 : results->strides[1] == 1 && shape.outputs > 1;
    set_sizes(shape, {Numbers(images->sizes.begin() + 2, images->sizes.end()),
                      Numbers(weights->sizes.begin() + 2, weights->sizes.end()),
                      geometry->integers(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES),
                      geometry->integers(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS),
                      geometry->integers(CUDNN_ATTR_CONVOLUTION_DILATIONS)});
    return Convolution{shape, names.pass};
  }
  return std::nullopt;
}

// The convolution of a graph, which may add a bias and an activation.
std::optional<Convolution> convolution_of(const Descriptor* graph) {
  const auto* const operations =
      graph == nullptr ? nullptr : graph->find(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  if (operations == nullptr) return std::nullopt;
  for (const auto& operation : operations->descriptors) {
    if (auto found = convolution(*operation)) return found;
  }
  return std::nullopt;
}

const Descriptor* engine_of_plan(const Descriptor& plan) {
  const Descriptor* const choice = plan.first(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  return choice == nullptr ? nullptr : choice->first(CUDNN_ATTR_ENGINECFG_ENGINE);
}

const Descriptor* graph_of_plan(const Descriptor& plan) {
  const Descriptor* const engine = engine_of_plan(plan);
  return engine == nullptr ? nullptr : engine->first(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
}

void set_integer(Descriptor& descriptor, cudnnBackendAttributeName_t name, std::int64_t value) {
  Descriptor::Attribute attribute{CUDNN_TYPE_INT64, 1, std::vector<std::byte>(sizeof value), {}};
  std::memcpy(attribute.bytes.data(), &value, sizeof value);
  descriptor.set(name, std::move(attribute));
}

void set_descriptor(Descriptor& descriptor, cudnnBackendAttributeName_t name,
                    std::shared_ptr<const Descriptor> value) {
  descriptor.set(name, {CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {std::move(value)}});
}

// In the order of the heuristics. Each kind has an engine with a workspace first, then one without.
constexpr std::int64_t kTensorCoreEngines = 2;
constexpr std::int64_t kAllEngines = 4;

bool has_workspace(std::int64_t engine) { return engine % 2 == 0; }
bool uses_tensor_cores(std::int64_t engine) { return engine < kTensorCoreEngines; }

std::int64_t engines_of(const Convolution& convolution) {
  return convolution.shape.element == 4 ? kAllEngines : kTensorCoreEngines;
}

std::shared_ptr<const Descriptor> engine_choice(std::shared_ptr<const Descriptor> graph,
                                                std::int64_t index) {
  const auto engine = std::make_shared<Descriptor>(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  set_descriptor(*engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, std::move(graph));
  set_integer(*engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, index);
  if (uses_tensor_cores(index)) {
    const cudnnBackendNumericalNote_t note = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
    Descriptor::Attribute notes{
        CUDNN_TYPE_NUMERICAL_NOTE, 1, std::vector<std::byte>(sizeof note), {}};
    std::memcpy(notes.bytes.data(), &note, sizeof note);
    engine->set(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, std::move(notes));
  }
  const auto choice = std::make_shared<Descriptor>(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  set_descriptor(*choice, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  return choice;
}

std::shared_ptr<const Descriptor> shared_first(const Descriptor& descriptor,
                                               cudnnBackendAttributeName_t name) {
  const auto* const found = descriptor.find(name);
  return found == nullptr || found->descriptors.empty() ? nullptr : found->descriptors.front();
}

// Checks a complete descriptor, and sets the attributes that follow from the others.
cudnnStatus_t finalize(Descriptor& descriptor) {
  switch (descriptor.type()) {
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      set_integer(descriptor, CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, kAllEngines);
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR: {
      const auto index = descriptor.integers(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
      const bool known = !index.empty() && index[0] >= 0 && index[0] < kAllEngines;
      return known ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
    }
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: {
      const auto graph = shared_first(descriptor, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
      const auto found = convolution_of(graph.get());
      if (!found) return CUDNN_STATUS_NOT_SUPPORTED;
      const std::int64_t engines = engines_of(*found);
      Descriptor::Attribute results{CUDNN_TYPE_BACKEND_DESCRIPTOR, engines, {}, {}};
      for (std::int64_t index = 0; index < engines; ++index) {
        results.descriptors.push_back(engine_choice(graph, index));
      }
      descriptor.set(CUDNN_ATTR_ENGINEHEUR_RESULTS, std::move(results));
      return CUDNN_STATUS_SUCCESS;
    }
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: {
      const Descriptor* const graph = graph_of_plan(descriptor);
      auto found = convolution_of(graph);
      if (!found) return CUDNN_STATUS_NOT_SUPPORTED;
      const auto index = engine_of_plan(descriptor)->integers(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
      if (index.empty() || index[0] >= engines_of(*found)) return CUDNN_STATUS_NOT_SUPPORTED;
      // A caller that compares all plans allows tensor cores. The usual choice is then one of these,
      // so the others, with workspaces of their own, would only add to the largest of all.
      if (uses_tensor_cores(index[0])) {
        graph->note_tensor_cores();
      } else if (graph->has_plan_with_tensor_cores()) {
        return CUDNN_STATUS_NOT_SUPPORTED;
      }
      found->shape.allows_tf32 = uses_tensor_cores(index[0]);
      const Workspace workspace =
          has_workspace(index[0]) ? workspace_of(found->shape, found->pass) : Workspace{};
      if (!workspace.is_exact) {
        ferro_sim_note_derived_workspace(static_cast<std::uint64_t>(found->shape.tensor_bytes()));
      }
      set_integer(descriptor, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                  static_cast<std::int64_t>(workspace.bytes));
      return CUDNN_STATUS_SUCCESS;
    }
    default:
      return CUDNN_STATUS_SUCCESS;
  }
}

// The operands in a pack: the data of the operation, in no particular order, and the workspace.
Operands operands_of(const Descriptor& pack) {
  std::vector<const void*> data = pack.pointers(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::vector<const void*> workspace = pack.pointers(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  data.resize(3);
  workspace.resize(1);
  return {.a = data[0], .b = data[1], .out = data[2], .workspace = workspace[0]};
}

cudnnStatus_t run_convolution(CUstream stream, const Convolution& c, const Operands& operands) {
  const ConvolutionShape& s = c.shape;
  const std::int64_t results = s.images * s.output_places();
  const std::int64_t window = s.inputs / s.groups * s.window_places();
  const Precision precision = s.element == 4  ? Precision::kSingle
                              : s.element > 4 ? Precision::kDouble
                                              : Precision::kHalf;
  ensure_context();
  return cudnn_status(enqueue_product(
      stream, {results, s.outputs / s.groups, window, s.groups, precision}, operands));
}

}  // namespace
}  // namespace ferro::sim

using ferro::sim::Descriptor;
using ferro::sim::held;
using ferro::sim::size_of;

extern "C" {

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* descriptor) {
  if (descriptor == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  *descriptor = new ferro::sim::Held(std::make_shared<Descriptor>(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<ferro::sim::Held*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  if (descriptor == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  return ferro::sim::finalize(*held(descriptor));
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  if (descriptor == nullptr || (count > 0 && values == nullptr)) {
    return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  }
  Descriptor::Attribute attribute{type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    const auto* const named = static_cast<const cudnnBackendDescriptor_t*>(values);
    for (std::int64_t i = 0; i < count; ++i) {
      if (named[i] != nullptr) attribute.descriptors.push_back(held(named[i]));
    }
  } else {
    const auto* const bytes = static_cast<const std::byte*>(values);
    attribute.bytes.assign(bytes, bytes + static_cast<std::size_t>(count) * size_of(type));
  }
  held(descriptor)->set(name, std::move(attribute));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t requested,
                                       int64_t* count, void* values) {
  if (descriptor == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  const Descriptor::Attribute* const found = held(descriptor)->find(name);
  if (found != nullptr && found->type != type) return CUDNN_STATUS_BAD_PARAM;
  // An engine has no knobs or similar attributes.
  const std::int64_t there = found == nullptr ? 0 : found->count;
  if (values == nullptr) {
    if (count != nullptr) *count = there;
    return CUDNN_STATUS_SUCCESS;
  }
  // The count is that of the written values, not of all: cudnn-frontend reads as many results as
  // are counted, and torch 2.15 requests one.
  const auto given = static_cast<std::size_t>(std::clamp(requested, std::int64_t{0}, there));
  if (count != nullptr) *count = static_cast<std::int64_t>(given);
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    auto* const named = static_cast<cudnnBackendDescriptor_t*>(values);
    for (std::size_t i = 0; i < given; ++i) {
      if (named[i] == nullptr) return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
      held(named[i]) = std::make_shared<Descriptor>(*found->descriptors[i]);
    }
  } else if (given > 0) {
    std::memcpy(values, found->bytes.data(), given * size_of(type));
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack) {
  if (handle == nullptr || plan == nullptr || pack == nullptr) {
    return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
  }
  const auto found = ferro::sim::convolution_of(ferro::sim::graph_of_plan(*held(plan)));
  return found ? ferro::sim::run_convolution(handle->stream, *found,
                                             ferro::sim::operands_of(*held(pack)))
               : CUDNN_STATUS_NOT_SUPPORTED;
}
}
