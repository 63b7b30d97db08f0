"""Rows of a table by index."""
