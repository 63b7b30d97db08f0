"""Fused rules for `add_layer_norm` and `add_rms_norm`."""
