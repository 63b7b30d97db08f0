"""The state of the reproduction: the `contents` of the paper, and in `standing` how far our runs reproduce each
entry.
"""
