/* The simulator's engine in one translation unit: `g++ -x c++ engine.h` makes the shared object that kernels built for
 * the host are linked against when they are loaded. */
#include "launch.h"
