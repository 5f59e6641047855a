// The module ferro_alloc.sim._values.
#include "values/operators.h"
#include "values/places.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;
using ferro::values::Failure;
using ferro::values::Read;

namespace {
// In the order of `Learned`.
constexpr const char* kLearned[] = {"float", "integer", "size"};
}  // namespace

PYBIND11_MODULE(_values, module) {
  module.def("install", &ferro::values::install, py::arg("compute"));
  module.def("reads", [] {
    py::list all;
    for (const Read& read : ferro::values::reads()) {
      all.append(py::make_tuple(read.place, read.operation, read.count,
                                kLearned[static_cast<std::size_t>(read.learned)], read.last));
    }
    return all;
  });
  module.def("failures", [] {
    py::list all;
    for (const Failure& failure : ferro::values::failures()) {
      all.append(py::make_tuple(failure.library, failure.operation, failure.message));
    }
    return all;
  });
}
