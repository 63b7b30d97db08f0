"""The operators of DRAW: grids of Gaussians that read and write, a whole glimpse, and the latent variables."""

from duoln.extend import register
from duoln.plugins.draw.ops import cases
from duoln.plugins.draw.ops.cuda import glimpse_on_cuda
from duoln.plugins.draw.ops.glimpse import split_look, write_then_read, write_then_read_compiled
from duoln.plugins.draw.ops.grid import LIMIT, WHERE, filterbank, read_patches, write_patch
from duoln.plugins.draw.ops.latent import gaussian_latent, latent_compiled, latent_on_cuda

write_then_read.add(write_then_read_compiled, "numpy")
write_then_read.add(glimpse_on_cuda, "cupy")
gaussian_latent.add(latent_compiled, "numpy")
gaussian_latent.add(latent_on_cuda, "cupy")
register(write_then_read, cases.glimpses)
register(gaussian_latent, cases.latents)

__all__ = ["LIMIT", "WHERE", "filterbank", "gaussian_latent", "read_patches", "split_look", "write_patch",
           "write_then_read"]
