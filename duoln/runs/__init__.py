"""Runs on disk: the folder of a run, its log and checkpoints, its trained model, and reports of several runs."""
