// The plain GRU over a sequence.
#define NORMS NOTHING
static constexpr int H_BIASES = 0;
#include "sequence.h"
