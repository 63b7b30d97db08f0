// The plain tanh RNN over a sequence.
#include "../norms.h"

static constexpr Over OVER = Over::NOTHING;
static constexpr bool APART = false;
#include "sequence.h"
