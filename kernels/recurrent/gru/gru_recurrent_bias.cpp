// The GRU with a bias of the recurrent n, too, as PyTorch and Keras have it.
#define NORMS NOTHING
static constexpr int H_BIASES = 1;
#include "sequence.h"
