// The tanh RNN with batch norm of each product, by the statistics of a time step (Cooijmans et al. 2017).
#include "../norms.h"

static constexpr Over OVER = Over::BATCH;
static constexpr bool APART = true;
#include "sequence.h"
