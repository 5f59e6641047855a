// The part of the Python module about tags.
#pragma once

#include <pybind11/pybind11.h>

namespace ferro {

void bind_tags(pybind11::module_& module);

}  // namespace ferro
