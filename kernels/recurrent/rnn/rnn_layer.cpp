// The tanh RNN with layer norm of both products' sum: eq. 4.
#define NORMS ROW
static constexpr bool APART = false;
#include "sequence.h"
