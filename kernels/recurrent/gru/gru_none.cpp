// The plain GRU over a sequence.
#include "../norms.h"

static constexpr Over OVER = Over::NOTHING;
static constexpr int H_BIASES = 0;
#include "sequence.h"
