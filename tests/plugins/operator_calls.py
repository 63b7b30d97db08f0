"""One right call of every operator that one experiment alone uses: from these the wrong calls are generated."""

from misuse.calls import Call, floats

from duoln.plugins.draw import ops as draw_ops
from duoln.plugins.handwriting import ops as handwriting_ops
from duoln.plugins.order_embeddings import ops as order_ops

CALLS = [
    Call("order_violation", ((floats(3, 4), "fixed"), (floats(2, 4), "fixed")), module=order_ops),
    Call("gaussian_latent", ((floats(3, 4), "fixed"), (floats(3, 2), "fixed")), module=draw_ops),
    Call("mixture_density", ((floats(3, 7), "fixed"), (floats(3, 3), "fixed")), module=handwriting_ops),
    Call("soft_window", ((floats(2, 6), "fixed"), (floats(2, 2), "fixed"), (floats(2, 3, 4), "fixed")),
         {"advance": (1.0, "positive")}, handwriting_ops),
    Call("filterbank", ((floats(2, 5), "fixed"),),
         {"size": (2, "count"), "pixels": (6, "count"), "centre": ("edge", "choice"), "inverse": (False, "flag")}, draw_ops),
    Call("write_then_read", ((floats(2, 6, 6), "fixed"), (floats(2, 6, 6), "fixed"), (floats(2, 14), "fixed")),
         {"read": (2, "count"), "write": (2, "count"), "centre": ("edge", "choice")}, draw_ops),
]
