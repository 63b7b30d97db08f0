"""The experiments of the paper, one folder each, all with the same structure. `paper` and `theory` bring commands."""

if __name__ == "plugins":
    raise ImportError("import it as duoln.plugins, not as plugins")
