"""Fused rules for `linear`."""
