// The GRU with layer norm of each product: eq. 26-28.
#define NORMS ROW
static constexpr int H_BIASES = 3;
#include "sequence.h"
