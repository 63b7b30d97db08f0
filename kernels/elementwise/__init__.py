"""Fused rules for `add`, `multiply` and `where`."""
