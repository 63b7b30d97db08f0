"""The operator of order embeddings: how far pairs of points are from being in order."""

from duoln.plugins.order_embeddings.ops.violation import order_violation

__all__ = ["order_violation"]
