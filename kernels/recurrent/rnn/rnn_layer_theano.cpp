// The tanh RNN with layer norm of each product, as the authors' Theano cells have it.
#define NORMS ROW
static constexpr bool APART = true;
#include "sequence.h"
