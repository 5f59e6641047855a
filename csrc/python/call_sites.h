// The part of the Python module that names the line of code behind a recorded stack.
#pragma once

#include <pybind11/pybind11.h>

namespace ferro {

void bind_call_sites(pybind11::module_& module);

}  // namespace ferro
