"""Fused rules for `conv2d`."""
