"""The stand-in for a GPU with the size of an H100: grids and walks have the layout that they have there."""

from functools import cache

from duoln.kernels.recurrent.cluster_plan import CLUSTERS, Device

MULTIPROCESSORS = 132
H100 = Device.of(9, MULTIPROCESSORS, 227 << 10)


def with_clusters(*sizes):
    """An H100 where only clusters of these sizes fit."""
    return H100._replace(active=tuple(n if size in sizes else 0 for size, n in zip(CLUSTERS, H100.active, strict=True)))


def use_h100(monkeypatch, layout=()):
    """From now on the device has this size; walks take a layout, blocks and rows of a cluster, or that of their plan."""
    from duoln.kernels.launch import cuda as launch
    from duoln.kernels.recurrent import cluster_plan, cuda_walk

    here = with_clusters(*layout[:1]) if layout else H100
    monkeypatch.setattr(launch, "multiprocessors", lambda: MULTIPROCESSORS)
    monkeypatch.setattr(cuda_walk, "device", lambda: here)
    monkeypatch.setattr(cuda_walk, "plan", cache(cluster_plan.plan.__wrapped__))
    if layout:
        monkeypatch.setattr(cluster_plan, "_ROWS", layout[1:])
