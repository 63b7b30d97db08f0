"""Fused rules for `order_violation`."""
