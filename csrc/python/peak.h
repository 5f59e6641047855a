// The part of the Python module that records the blocks live at the peak.
#pragma once

#include <pybind11/pybind11.h>

namespace ferro {

void bind_peak(pybind11::module_& module);

}  // namespace ferro
