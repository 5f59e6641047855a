// The part of the Python module that belongs to the debug mode of graphs.
#pragma once

#include <pybind11/pybind11.h>

namespace ferro {

void bind_graph_debug(pybind11::module_& module);

}  // namespace ferro
