"""A compiled step: `recording` notes the rules of a first call, `program` holds them, `replay` runs them again.

`symbol` and `trace` are how a program becomes the table of launches of kernels/step; `telling` prints it.
"""
