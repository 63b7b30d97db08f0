"""Fused rules for `rnn`."""
