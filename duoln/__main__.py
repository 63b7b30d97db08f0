"""`python -m duoln` is the `duoln` command."""

from duoln.cli import command

if __name__ == "__main__":
    command()
