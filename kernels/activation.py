"""The activations that kernels compute in the same pass as a norm or a product."""

NUMBERS = {None: 0, "relu": 1, "tanh": 2}
"""Their numbers in activation.h."""
