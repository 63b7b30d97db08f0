"""Fused rules for `adam`."""
