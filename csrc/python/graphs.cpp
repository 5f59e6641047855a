#include "python/graphs.h"

#include "ferro/adapter/allocator/capture_pools.h"
#include "ferro/adapter/allocator/installed_allocator.h"
#include "ferro/adapter/graphs/tensor_scalar.h"
#include "ferro/adapter/graphs/torch_graph.h"
#include "ferro/adapter/torch/driver_refusals.h"
#include "ferro/adapter/torch/torch_compat.h"

#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace py = pybind11;

namespace ferro {
namespace {

using torch::wrap_pybind_function;
using torch::wrap_pybind_function_no_gil;

using Handle = std::pair<std::uint64_t, std::uint64_t>;
PoolId to_pool_id(const Handle& handle) { return {handle.first, handle.second}; }
Handle to_handle(const PoolId& id) { return {id.graph, id.handle}; }

// ---- pools

// The thread that releases the pool drops the buffer, so it takes the GIL for that.
std::size_t record_buffer(CapturePool& pool, py::object buffer) {
  return pool.record_buffer({new py::object(std::move(buffer)), [](void* held) {
                               if (Py_IsInitialized() != 0) {
                                 const py::gil_scoped_acquire acquire;
                                 delete static_cast<py::object*>(held);
                               }
                             }});
}

// Before the first install no allocator reports releases.
PoolRegistry& current_pools() {
  if (installed_allocator() == nullptr) {
    pool_registry().drop_unused();
  }
  return pool_registry();
}

PoolRegistry::Pool open_pool(const Handle& handle, const std::string& name) {
  return current_pools().open(to_pool_id(handle), name);
}

PoolRegistry::Pool lend_pool(const Handle& handle, const std::string& name) {
  return current_pools().lend(to_pool_id(handle), name);
}

PoolRegistry::Pool find_pool(const Handle& handle) {
  return current_pools().find(to_pool_id(handle));
}

PoolRegistry::Pool find_pool_by_handle(const Handle& handle) {
  return current_pools().find_by_handle(to_pool_id(handle));
}

void close_pool(const Handle& handle) { current_pools().close(to_pool_id(handle)); }

Handle new_capture_handle() { return to_handle(new_capture_id()); }

template <typename Sizes>
py::dict to_dict(const Sizes& sizes) {
  py::dict dict;
  dict["private_bytes"] = sizes.private_bytes;
  dict["live_bytes"] = sizes.live_bytes;
  dict["scratch_bytes"] = sizes.scratch_bytes;
  dict["shared_bytes"] = sizes.shared_bytes;
  return dict;
}

// (handle, name, sizes) of each private pool with memory on the device.
py::list private_pools(c10::DeviceIndex device) {
  py::list pools;
  if (const CudaAllocator* allocator = allocator_of(device)) {
    for (const CudaAllocator::PrivatePool& pool : allocator->private_pools(device)) {
      py::dict sizes = to_dict(pool.sizes);
      sizes["asleep_bytes"] = pool.sizes.asleep_bytes;
      pools.append(py::make_tuple(to_handle(pool.id), pool.name, sizes));
    }
  }
  return pools;
}

// Throws where ferro_alloc refuses a capture into the pool.
void check_capture(c10::DeviceIndex device, const Handle& pool) {
  if (const CudaAllocator* allocator = allocator_of(device)) {
    allocator->check_capture(device, to_pool_id(pool));
  }
}

// ---- exclusive groups

std::string join_scratch(std::uint64_t group, const Handle& handle) {
  CudaAllocator* allocator = installed_allocator();
  return allocator == nullptr ? "" : allocator->join_scratch(group, to_pool_id(handle));
}

bool is_in_group(std::uint64_t group, const Handle& handle) {
  const CudaAllocator* allocator = installed_allocator();
  return allocator != nullptr && allocator->is_in_group(group, to_pool_id(handle));
}

std::string leave_scratch(const Handle& handle) {
  CudaAllocator* allocator = installed_allocator();
  return allocator == nullptr ? "" : allocator->leave_scratch(to_pool_id(handle));
}

void expect_checkpoints(const Handle& handle) {
  if (CudaAllocator* allocator = installed_allocator()) {
    allocator->expect_checkpoints(to_pool_id(handle));
  }
}

bool is_tree_pool(const Handle& handle) {
  const CudaAllocator* allocator = installed_allocator();
  return allocator != nullptr && allocator->is_of_tree(to_pool_id(handle));
}

// (bytes of pages, bytes of addresses of scratch)
std::pair<std::size_t, std::size_t> scratch_bytes(std::uint64_t group) {
  const CudaAllocator* allocator = installed_allocator();
  const GroupBytes bytes = allocator == nullptr ? GroupBytes{} : allocator->scratch_bytes(group);
  return {bytes.set, bytes.scratch};
}

// -1 if on several devices, or on none yet.
int pool_device(const Handle& handle) {
  const CudaAllocator* allocator = installed_allocator();
  return allocator == nullptr ? -1 : allocator->device_of(to_pool_id(handle)).value_or(-1);
}

std::pair<std::size_t, std::size_t> scratch_bytes_if_joined(const std::vector<Handle>& handles) {
  std::vector<PoolId> pools;
  std::ranges::transform(handles, std::back_inserter(pools), to_pool_id);
  const CudaAllocator* allocator = installed_allocator();
  const GroupBytes bytes =
      allocator == nullptr ? GroupBytes{} : allocator->scratch_bytes_if_joined(pools);
  return {bytes.set, bytes.scratch};
}

// ---- captures and graphs

int status_number(c10::DeviceIndex device, StreamNumber stream) {
  return static_cast<int>(status_of(stream_of(stream, device), device));
}

void begin(at::cuda::CUDAGraph& graph, std::optional<Handle> pool, const std::string& mode) {
  begin_capture(graph, to_pool_id(pool.value_or(Handle{0, 0})), mode);
}

// Where graphs register without a lock, the GIL becomes that lock: it is held where Python destroys a
// graph, and with this method in PyTorch's class also where a capture begins, except while the
// allocator begins it. Elsewhere a no-op.
void keep_gil_in_capture_begin() {
  static bool is_done = false;  // guarded by the GIL
  if (kGraphsRegisterWithoutLock && !std::exchange(is_done, true)) {
    const py::object of_graphs = py::module_::import("torch._C").attr("_CUDAGraph");
    of_graphs.attr("capture_begin") =
        py::cpp_function(wrap_pybind_function(&begin), py::name("capture_begin"),
                         py::is_method(of_graphs), py::arg("pool"), py::arg("capture_error_mode"));
  }
}

// Begins a capture of its own, and destroys the graph.
void settle(c10::DeviceIndex device, std::uint64_t stream) {
  if constexpr (kGraphsRegisterWithoutLock) {
    settle_after_failed_capture(device, stream);
  } else {
    const py::gil_scoped_release no_gil;
    settle_after_failed_capture(device, stream);
  }
}

// `graph` is a torch.cuda.CUDAGraph.
std::unique_ptr<DeviceGraph> device_graph(const py::object& graph, c10::DeviceIndex device,
                                          PoolRegistry::Pool pool, StreamNumber bound) {
  return std::make_unique<DeviceGraph>(
      graph.cast<std::shared_ptr<at::cuda::CUDAGraph>>(), [graph] { graph.attr("replay")(); },
      device, std::move(pool), bound);
}

// ---- device scalars

// Works also while Python has an error set, which it clears.
std::string text_of(const py::object& number) {
  PyErr_Clear();
  return py::str(number);
}

c10::Scalar to_scalar(const py::object& number) {
  PyObject* object = number.ptr();
  if (PyBool_Check(object)) {
    return object == Py_True;
  }
  if (PyLong_Check(object)) {
    int overflow = 0;
    const std::int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow == 0) {
      return value;
    }
    const std::uint64_t large = overflow > 0 ? PyLong_AsUnsignedLongLong(object) : 0;
    TORCH_CHECK(overflow > 0 && PyErr_Occurred() == nullptr, "value ", text_of(number),
                " has more than 64 bits");
    return large;
  }
  if (PyComplex_Check(object)) {
    return c10::complex<double>(PyComplex_RealAsDouble(object), PyComplex_ImagAsDouble(object));
  }
  if (PyFloat_Check(object)) {
    return PyFloat_AS_DOUBLE(object);
  }
  TORCH_CHECK_TYPE(false, "expected a number, and got ", std::string(py::repr(number)));
}

void update(TensorScalar& scalar, const py::object& value, StreamNumber stream) {
  const c10::Scalar number = to_scalar(value);
  with_torch_errors([&] { scalar.update(number, stream); });
}

void bind_pools(py::module_& module) {
  py::class_<CapturePool, std::shared_ptr<CapturePool>>(module, "CapturePool")
      .def_property_readonly("handle", [](const CapturePool& pool) { return to_handle(pool.id()); })
      .def_property("name", &CapturePool::name, &CapturePool::set_name)
      .def_property_readonly("is_sealed", &CapturePool::is_sealed)
      .def("seal", &CapturePool::seal)
      .def("unseal", &CapturePool::unseal)
      .def("record_buffer", &record_buffer, py::arg("buffer"))
      .def_property_readonly("buffer_count", &CapturePool::buffer_count)
      .def("clear_buffers", &CapturePool::clear_buffers, py::call_guard<py::gil_scoped_release>());
  const py::call_guard<py::gil_scoped_release> no_gil;
  module.def("open_pool", &open_pool, py::arg("handle"), py::arg("name"), no_gil);
  module.def("lend_pool", &lend_pool, py::arg("handle"), py::arg("name") = "", no_gil);
  module.def("find_pool", &find_pool, py::arg("handle"), no_gil);
  module.def("find_pool_by_handle", &find_pool_by_handle, py::arg("handle"), no_gil);
  module.def("close_pool", &close_pool, py::arg("handle"), no_gil);
  module.def("new_capture_handle", &new_capture_handle);
  module.def("join_scratch", wrap_pybind_function_no_gil(&join_scratch), py::arg("group"),
             py::arg("handle"));
  module.def("is_in_group", wrap_pybind_function_no_gil(&is_in_group), py::arg("group"),
             py::arg("handle"));
  module.def("leave_scratch", wrap_pybind_function_no_gil(&leave_scratch), py::arg("handle"));
  module.def("expect_checkpoints", wrap_pybind_function_no_gil(&expect_checkpoints),
             py::arg("handle"));
  module.def("is_tree_pool", wrap_pybind_function_no_gil(&is_tree_pool), py::arg("handle"));
  module.def("scratch_bytes", wrap_pybind_function_no_gil(&scratch_bytes), py::arg("group"));
  module.def("scratch_bytes_if_joined", wrap_pybind_function_no_gil(&scratch_bytes_if_joined),
             py::arg("handles"));
  module.def("pool_device", &pool_device, py::arg("handle"));
  module.def("private_pools", &private_pools, py::arg("device"));
}

void bind_captured_graphs(py::module_& module) {
  module.def("capture_status", wrap_pybind_function(&status_number), py::arg("device"),
             py::arg("stream"));
  module.def("check_capture", wrap_pybind_function_no_gil(&check_capture), py::arg("device"),
             py::arg("pool"));
  module.def("settle_after_failed_capture", wrap_pybind_function(&settle), py::arg("device"),
             py::arg("stream"));
  module.def("keep_gil_in_capture_begin", &keep_gil_in_capture_begin);
  py::class_<DeviceGraph>(module, "CapturedGraph")
      .def(py::init(&device_graph), py::arg("graph"), py::arg("device"), py::arg("pool"),
           py::arg("bound"))
      // With the GIL, which the graph's own replay releases.
      .def("launch", wrap_pybind_function(&DeviceGraph::launch), py::arg("stream"))
      .def("upload", wrap_pybind_function_no_gil(&DeviceGraph::upload), py::arg("stream"))
      .def_property_readonly("num_replays",
                             [](const DeviceGraph& held) { return held.graph().num_replays(); })
      .def_property_readonly("is_uploaded",
                             [](const DeviceGraph& held) { return held.graph().is_uploaded(); })
      .def_property_readonly("buffer_count",
                             [](const DeviceGraph& held) { return held.graph().buffer_count(); })
      .def("sizes", [](const DeviceGraph& held) -> std::optional<py::dict> {
        const std::optional<GraphSizes> sizes = held.sizes();
        return sizes ? std::optional(to_dict(*sizes)) : std::nullopt;
      });
}

void bind_device_scalars(py::module_& module) {
  py::class_<TensorScalar>(module, "DeviceScalar")
      .def(py::init<at::Tensor, StreamNumber>(), py::arg("tensor"), py::arg("bound"))
      .def("update", wrap_pybind_function(&update), py::arg("value"), py::arg("stream"));
}

}  // namespace

void bind_graphs(py::module_& module) {
  bind_pools(module);
  bind_captured_graphs(module);
  bind_device_scalars(module);
}

}  // namespace ferro
