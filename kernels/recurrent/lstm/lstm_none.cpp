// The plain LSTM over a sequence.
#include "../norms.h"

static constexpr Over OVER = Over::NOTHING;
static constexpr bool CELL = false;
#include "sequence.h"
