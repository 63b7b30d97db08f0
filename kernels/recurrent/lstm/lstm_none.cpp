// The plain LSTM over a sequence.
#define NORMS NOTHING
static constexpr bool CELL = false;
#include "sequence.h"
