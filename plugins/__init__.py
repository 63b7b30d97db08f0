"""The experiments of the paper: one folder each, all alike."""

if __name__ == "plugins":
    raise ImportError("import it as duoln.plugins, not as plugins")
