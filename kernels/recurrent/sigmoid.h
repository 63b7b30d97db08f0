#pragma once
#include "../portable.h"

FUNCTION real sigmoid(real x) { return 1.0f / (1.0f + exponential(-x)); }
