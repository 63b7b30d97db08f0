"""A made task with levels and curves of the paper, runs of it, and the axes of pictures that are drawn."""

from contextlib import contextmanager

from duoln.runs.curve import Curve
from duoln.tasks import Column, Dataset, ReferenceCurve, Task


class Reading(Task):
    """A task that has both."""

    name, title, paper = "reading", "Reading", "figure 2"
    variants = {"none": {"norm": "none"}, "ln": {"norm": "layer"}}  # noqa: RUF012
    columns = (Column("valid_error", "valid error", ".2%", level="chance"), Column("test_error", "test error"),
               Column("chance", "by chance", ".2f"))
    x_axis = "update"
    references = {"none": "slow", "ln": "fast"}  # noqa: RUF012

    def reference_curves(self):
        return [ReferenceCurve("valid_error", "none", [(1000, 0.9), (2000, 0.5)])]


def made_curve(path, variant, scale=1.0, **settings):
    """A run in a folder, whose errors are some values times `scale`."""
    points = [{"update": k, "epoch": k / 10, "wall_s": 0.1, "valid_error": scale / k, "test_error": 2 * scale / k, "chance": 0.75}
              for k in (10, 20)]
    config = {"seed": 0, "batch_size": 8, "norm": Reading.variants[variant]["norm"], **settings}
    return Curve(path, "reading", variant, config, Dataset("made", "synthetic"), points, [(k, 1.0 / k) for k in range(1, 21)], {}, [])


def kept_figures(monkeypatch, module):
    """A list of the figures that a module draws from now on, and of their axes; nothing is written."""
    from matplotlib import pyplot

    kept = []

    @contextmanager
    def keeping(target, rows, columns, size, bottom=None, **grid):
        whole, axes = pyplot.subplots(rows, columns, squeeze=False, figsize=size, **grid)
        kept.append((whole, axes))
        yield whole, axes

    monkeypatch.setattr(module, "figure", keeping)
    return kept
