"""The stand-in for a GPU with the size of an H100: grids and walks have the layout that they have there."""

from functools import cache

from duoln.kernels.recurrent.cluster_plan import Device

H100 = Device.of(9, 132, 227 << 10)


def use_h100(monkeypatch, layout=()):
    """From now on the device has this size; walks take a layout, blocks and rows of a cluster, or that of their plan."""
    from duoln.kernels import launch
    from duoln.kernels.recurrent import cluster_plan, cuda_walk

    monkeypatch.setattr(launch, "multiprocessors", lambda: H100.multiprocessors)
    monkeypatch.setattr(cuda_walk, "device", lambda: H100)
    monkeypatch.setattr(cuda_walk, "plan", cache(cluster_plan.plan.__wrapped__))
    if layout:
        monkeypatch.setattr(cluster_plan, "_CLUSTERS", layout[:1])
        monkeypatch.setattr(cluster_plan, "_ROWS", layout[1:])
