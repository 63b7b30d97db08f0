"""Fused rules for `gru`."""
