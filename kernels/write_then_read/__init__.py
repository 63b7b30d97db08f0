"""Fused rules for `write_then_read`."""
