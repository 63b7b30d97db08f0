// The GRU with layer norm of each gate alone.
#include "../norms.h"

static constexpr Over OVER = Over::GATE;
static constexpr int H_BIASES = 3;
#include "sequence.h"
