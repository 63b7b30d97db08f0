"""The experiments of the paper: one folder each, and all folders have the same structure."""

if __name__ == "plugins":
    raise ImportError("import it as duoln.plugins, not as plugins")
