"""Fused rules for `softmax_cross_entropy`."""
