#include "sim/faces/names/cudart.def"
#include "sim/faces/stubs.h"
