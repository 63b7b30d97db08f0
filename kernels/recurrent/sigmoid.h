#pragma once
#include "../portable.h"

FUNCTION float sigmoid(float x) { return 1.0f / (1.0f + exp(-x)); }
