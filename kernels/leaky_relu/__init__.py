"""Fused rules for `leaky_relu`."""
