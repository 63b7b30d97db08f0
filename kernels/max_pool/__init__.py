"""Fused rules for `max_pool2d`."""
