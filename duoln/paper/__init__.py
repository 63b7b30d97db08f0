"""Where the reproduction of the paper stands: its `contents`, and what our runs have of each, `standing`."""
