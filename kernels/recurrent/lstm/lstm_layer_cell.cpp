// The LSTM with layer norm of the cell, before the output: eq. 29-31.
#define NORMS NOTHING
static constexpr bool CELL = true;
#include "sequence.h"
