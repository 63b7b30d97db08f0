// The GRU with layer norm of each gate alone.
#define NORMS GATE
static constexpr int H_BIASES = 3;
#include "sequence.h"
