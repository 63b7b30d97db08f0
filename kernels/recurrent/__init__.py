"""Shared parts of the recurrent operators' rules, and their rule on MLX, which is the same for all cells."""
