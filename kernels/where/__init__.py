"""Fused rule for `where`."""
