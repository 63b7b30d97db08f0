// The tanh RNN with batch norm of each product, by the statistics of a time step (Cooijmans et al. 2017).
#define NORMS BATCH
static constexpr bool APART = true;
#include "sequence.h"
