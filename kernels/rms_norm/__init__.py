"""Fused rules for `rms_norm`."""
