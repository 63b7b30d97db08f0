"""Fused rules for `scaled_dot_product_attention`."""
