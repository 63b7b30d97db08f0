// The tanh RNN with layer norm of each product, as the authors' Theano cells have it.
#include "../norms.h"

static constexpr Over OVER = Over::ROW;
static constexpr bool APART = true;
#include "sequence.h"
