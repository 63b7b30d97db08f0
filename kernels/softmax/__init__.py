"""Softmax and its logarithm along rows, and their gradients."""
