// The part of the Python module that belongs to ferro_alloc.graphs.
#pragma once

#include <pybind11/pybind11.h>

namespace ferro {

void bind_graphs(pybind11::module_& module);

}  // namespace ferro
