"""Fused rules for products of matrices."""
