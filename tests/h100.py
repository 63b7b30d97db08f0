"""The stand-in for a GPU with the size of an H100: grids and walks have the layout that they have there."""

import pytest

from duoln.kernels.recurrent.cluster_plan import Device

H100 = Device.of(9, 132, 227 << 10)


@pytest.fixture
def h100(gpu, monkeypatch):
    """A function that gives this GPU; walks then have a layout, blocks and rows of a cluster, or that of their plan."""
    from duoln.kernels import launch
    from duoln.kernels.recurrent import cluster_plan, cuda_walk

    monkeypatch.setattr(launch, "multiprocessors", lambda: H100.multiprocessors)
    monkeypatch.setattr(cuda_walk, "device", lambda: H100)

    def use(layout=()):
        if layout:
            monkeypatch.setattr(cluster_plan, "_CLUSTERS", layout[:1])
            monkeypatch.setattr(cluster_plan, "_ROWS", layout[1:])
        cluster_plan.plan.cache_clear()
        return gpu

    yield use
    cluster_plan.plan.cache_clear()
