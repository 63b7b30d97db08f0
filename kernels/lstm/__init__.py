"""Fused rules for `lstm`."""
