// The LSTM with layer norm of each product and of the cell, before the output: eq. 20-22.
#define NORMS ROW
static constexpr bool CELL = true;
#include "sequence.h"
