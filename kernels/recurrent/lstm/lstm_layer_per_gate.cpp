// The LSTM with layer norm of each gate alone, and of the cell that it carries.
#include "../norms.h"

static constexpr Over OVER = Over::GATE;
static constexpr bool CELL = true;
#include "sequence.h"
