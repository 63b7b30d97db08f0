"""Fused rules for `add`."""
