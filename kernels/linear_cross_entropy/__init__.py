"""Fused rules for `linear_cross_entropy`."""
