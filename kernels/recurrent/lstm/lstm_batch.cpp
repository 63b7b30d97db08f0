// The LSTM with batch norm of each product and of the cell, by the statistics of a time step (Cooijmans et al. 2017).
#define NORMS BATCH
static constexpr bool CELL = true;
#include "sequence.h"
