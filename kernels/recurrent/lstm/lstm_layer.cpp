// The LSTM with layer norm of each product and of the cell, before the output: eq. 20-22.
#include "../norms.h"

static constexpr Over OVER = Over::ROW;
static constexpr bool CELL = true;
#include "sequence.h"
