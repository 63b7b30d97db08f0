"""A run on disk: its folder, its log, its checkpoints, what it has learnt, and reports of several runs."""
