"""The common norm of many tensors."""
