"""Fused rule for `multiply`."""
