"""The operator of order embeddings: how far pairs of points are from being in order."""

from duoln.plugins.order_embeddings.ops.violation import order_violation, order_violation_of_captions

__all__ = ["order_violation", "order_violation_of_captions"]
