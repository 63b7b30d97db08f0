// The tanh RNN with layer norm of both products' sum: eq. 4.
#include "../norms.h"

static constexpr Over OVER = Over::ROW;
static constexpr bool APART = false;
#include "sequence.h"
