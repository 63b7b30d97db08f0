"""Pictures by matplotlib: a figure is drawn, and then written to its file at once.

They have one style, which the settings of the user's matplotlib do not change, and change nothing in it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from duoln.errors import UsageError, words_of
from duoln.system.filesystem import make_folder, write_own
from duoln.system.visible import visible

FORMS = (".png", ".svg", ".pdf")
_DPI = 110
_SHOWN = "\u200b"
"""Stands before a label that begins with an underscore until the legend is made."""


def can_draw() -> bool:
    """True if matplotlib is installed and works."""
    return not refusal()


@cache
def refusal() -> str:
    """The reason why no picture can be drawn, with its remedy; empty if pictures can be drawn."""
    if find_spec("matplotlib") is None:
        return "pip install matplotlib"
    backend = os.environ.pop("MPLBACKEND", None)  # it is for windows, and an unknown one fails the import
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401
    except Exception as error:  # it has code of C, and reads a file of the user's settings
        return f"matplotlib cannot be imported: {type(error).__name__}: {words_of(error)[:200]}"
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    return ""


def check_picture(path: Path) -> None:
    """Refuse a picture that cannot be written. Call this before the computation of its values.

    Raises:
        UsageError: matplotlib is not installed or does not work, or the name does not end as a picture's does.
    """
    if path.suffix.lower() not in FORMS:
        raise UsageError(f"{path}: expected a picture's name, which ends in {', '.join(FORMS)}; "
                         f"found {path.suffix or 'no ending'}")
    if not can_draw():
        raise UsageError(f"{path}: pictures need matplotlib: {refusal()}")


@contextmanager
def figure(target: Path, rows: int = 1, columns: int = 1, size: tuple[float, float] = (6.4, 4.0),
           top: float = 1.0, bottom: float = 0.0, **grid: Any) -> Iterator[tuple[Any, Any]]:
    """A matplotlib figure and its axes (rows, columns), written to `target` at the end.

    Args:
        target: ends in .png, .svg or .pdf.
        rows, columns: the size of the grid of axes.
        size: width and height in inches.
        top: the share of the height below which the axes are; above it is room for a legend.
        bottom: the share of the height above which the axes are; below it is room for a legend.
        grid: passed on to `matplotlib.figure.Figure.subplots`, such as `sharex="col"`.

    Raises:
        UsageError: matplotlib is not installed or does not work, or the name's ending is no picture's.
        CheckpointError: the file cannot be written.
    """
    check_picture(target)
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        drawn = Figure(figsize=size)  # not one of pyplot, which would choose the backend for the user's own figures
        yield drawn, drawn.subplots(rows, columns, squeeze=False, subplot_kw={"axes_class": _axes_class()}, **grid)
        _disable_mathtext(drawn)
        drawn.tight_layout(rect=(0, bottom, 1, top))
        content = io.BytesIO()
        drawn.savefig(content, format=target.suffix[1:].lower(), dpi=_DPI)
    make_folder(target.parent)
    write_own(target, content.getvalue())


@cache
def _axes_class() -> Any:
    """Axes of matplotlib, whose legend also has the labels that begin with an underscore."""
    from matplotlib.axes import Axes

    def labelled(add: Callable[..., Any]) -> Callable[..., Any]:
        def add_labelled(axes: Any, artist: Any, *args: Any, **options: Any) -> Any:
            label = artist.get_label() or ""
            if label.startswith("_") and label != "_nolegend_":  # matplotlib's own, of each bar
                artist.set_label(_SHOWN + label)
            return add(axes, artist, *args, **options)

        return add_labelled

    methods = ("add_line", "add_patch", "add_collection", "add_container")
    return type("LabelledAxes", (Axes,), {name: labelled(getattr(Axes, name)) for name in methods})


def _disable_mathtext(drawn: Any) -> None:
    """Show each text of a figure as it is, and not as a formula. Only the numbers that matplotlib writes at an axis may
    be formulas.

    Names and labels come from users: `$` signs in them could raise an error, and control characters cannot be drawn.
    """
    from matplotlib.text import Text
    from matplotlib.ticker import FixedFormatter, FuncFormatter, LogFormatter, ScalarFormatter

    numbers = set()
    for axis in (axis for axes in drawn.axes for axis in (axes.xaxis, axes.yaxis)):
        formatter = axis.get_major_formatter()
        if isinstance(formatter, FixedFormatter | FuncFormatter):  # they make texts again at each drawing
            axis.set_major_formatter(FuncFormatter(lambda value, place, of=formatter: visible(of(value, place))))
        if isinstance(formatter, LogFormatter | ScalarFormatter):
            numbers |= {*axis.get_ticklabels(), *axis.get_ticklabels(minor=True), axis.get_offset_text()}
    for text in drawn.findobj(Text):
        if text not in numbers:
            text.set_parse_math(False)
            text.set_text(visible(text.get_text().removeprefix(_SHOWN)))
