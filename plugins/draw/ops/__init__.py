"""The operators of DRAW: grids of Gaussians that read and write, a whole glimpse, and the latent variables."""

from duoln.plugins.draw.ops.glimpse import split_look, write_then_read
from duoln.plugins.draw.ops.grid import LIMIT, WHERE, Centre, filterbank, read_patches, write_patch
from duoln.plugins.draw.ops.latent import gaussian_latent

__all__ = ["LIMIT", "WHERE", "Centre", "filterbank", "gaussian_latent", "read_patches", "split_look", "write_patch",
           "write_then_read"]
