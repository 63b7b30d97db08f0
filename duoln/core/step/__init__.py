"""The compiled step: its symbols and its trace; kernels/step has the table."""
