// The GRU with a bias of the recurrent n, too, as PyTorch and Keras have it.
#include "../norms.h"

static constexpr Over OVER = Over::NOTHING;
static constexpr int H_BIASES = 1;
#include "sequence.h"
