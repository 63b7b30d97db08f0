// The GRU with batch norm of each product, by the statistics of a time step (Cooijmans et al. 2017).
#define NORMS BATCH
static constexpr int H_BIASES = 0;
#include "sequence.h"
