// The LSTM with layer norm of each gate alone, and of the cell that it carries.
#define NORMS GATE
static constexpr bool CELL = true;
#include "sequence.h"
