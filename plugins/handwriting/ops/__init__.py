"""The operators of handwriting: the window over the text, and the density of the pen's next point."""

from duoln.plugins.handwriting.ops.mixture import mixture_density
from duoln.plugins.handwriting.ops.window import soft_window

__all__ = ["mixture_density", "soft_window"]
