"""Fused operators: one folder each, with a rule for every array library that has one."""

if __name__ == "kernels":
    raise ImportError("import it as duoln.kernels, not as kernels")
