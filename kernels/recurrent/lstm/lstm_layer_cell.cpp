// The LSTM with layer norm of the cell, before the output: eq. 29-31.
#include "../norms.h"

static constexpr Over OVER = Over::NOTHING;
static constexpr bool CELL = true;
#include "sequence.h"
