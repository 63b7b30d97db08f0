"""Fused rules for `relu` and `leaky_relu`."""
