// The plain tanh RNN over a sequence.
#define NORMS NOTHING
static constexpr bool APART = false;
#include "sequence.h"
