"""Fused rules for `batch_norm`."""
