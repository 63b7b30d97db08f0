"""Small kernels that measure the device itself, not an operator."""
