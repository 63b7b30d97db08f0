"""Fused rules for `layer_norm`."""
