"""One right call of every operator that one experiment alone uses: from these the wrong calls are generated."""

from misuse.calls import drawn

from duoln.plugins.draw import ops as draw_ops
from duoln.plugins.handwriting import ops as handwriting_ops
from duoln.plugins.order_embeddings import ops as order_ops

CALLS = [
    drawn(order_ops.order_violation, order_ops),
    drawn(draw_ops.gaussian_latent, draw_ops),
    drawn(handwriting_ops.mixture_density, handwriting_ops, {"width": 7}),
    drawn(handwriting_ops.soft_window, handwriting_ops),
    drawn(draw_ops.filterbank, draw_ops),
    drawn(draw_ops.write_then_read, draw_ops, {"where": 14}),
]
