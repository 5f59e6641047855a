// The register of functions that a program called and the simulated GPU does not have.
//
// It lives in libcuda.so.1 and serves all libraries. Thread-safe. A name is printed on stderr
// and kept the first time it is reported.
#pragma once

#include <cstddef>

extern "C" {
void ferro_sim_report_unsupported(const char* name);
size_t ferro_sim_unsupported_count();
// Valid until the process ends; null when `index` is out of range.
const char* ferro_sim_unsupported_name(size_t index);
}
