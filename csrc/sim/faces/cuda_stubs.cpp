#include "sim/faces/names/cuda.def"
#include "sim/faces/stubs.h"
