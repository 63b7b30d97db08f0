"""Short programs that show how duoln is used."""

if __name__ == "examples":
    raise ImportError("import it as duoln.examples, not as examples")
