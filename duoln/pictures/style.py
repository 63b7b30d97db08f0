"""The one style of all pictures: a variant has the same colour, dashes and marker wherever it is drawn.

The colours can be told apart by readers who are blind to red or to green: a test simulates both. Dashes and markers
differ as well, so that a print without colours can be read.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

COLOURS = ("#0072B2", "#E69F00", "#333333", "#CC79A7", "#88CCEE", "#A6761D", "#332288", "#DDCC77")
_DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2), (2, 1.5), (6, 2, 1.5, 2), (9, 3), (3, 1, 1, 1), (1, 1), (5, 1))
"""On and off lengths in line widths; none at all is a solid line."""
_MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")
_KNOWN = {"ln": 0, "bn": 1, "none": 2, "wn": 3}
"""The variants that several tasks have."""
_DARKEST, _LIGHTEST = 10.0, 79.0
"""The lightness (CIE L*) between which several runs of a variant are; white is 100."""

WIDTH = 7.3
"""Inches: at the pictures' resolution about the 800 points that a page of text has."""
SMALL, MIDDLE, LARGE = 8, 9, 11
"""Font sizes."""
_DECADES = 2e3
"""An axis over a larger ratio has no room for three numbers a decade."""
_LETTER = 0.55
"""The width of a letter in font sizes, on average."""


class Look(NamedTuple):
    """The style of a line."""

    colour: str
    dashes: tuple[float, ...]
    marker: str

    def line(self) -> dict[str, Any]:
        """The keyword arguments of matplotlib's `plot` for a line without markers."""
        return {"color": self.colour, "linestyle": (0, self.dashes) if self.dashes else "solid"}

    def marked(self) -> dict[str, Any]:
        """The same for a line with a marker at each point."""
        return {**self.line(), "marker": self.marker, "markersize": 3.5}


def look(index: int) -> Look:
    """The look of a number; after the last colour they begin again, with other dashes and markers."""
    turn, place = divmod(index, len(COLOURS))
    return Look(COLOURS[place], _DASHES[(place + turn) % len(_DASHES)], _MARKERS[(place + turn) % len(_MARKERS)])


def looks(variants: Iterable[str]) -> dict[str, Look]:
    """A look for each variant of a task: the known variants have theirs, the others the next free ones in order."""
    names = list(dict.fromkeys(variants))
    others = [name for name in names if name not in _KNOWN]
    places = {**_KNOWN, **{name: len(_KNOWN) + k for k, name in enumerate(others)}}
    return {name: look(places[name]) for name in names}


def shades(of_variant: Look, count: int) -> list[Look]:
    """Looks for `count` runs of one variant: its colour, which is lighter or darker for all but the first run.

    Each has dashes and a marker of its own.
    """
    first = _MARKERS.index(of_variant.marker)
    wanted = _spread_lightness(_lightness(of_variant.colour), count - 1)
    others = [_of_lightness(of_variant.colour, each) for each in wanted]
    return [of_variant, *(Look(colour, _DASHES[(first + k) % len(_DASHES)], _MARKERS[(first + k) % len(_MARKERS)])
                          for k, colour in enumerate(others, 1))]


def run_looks(of_runs: Sequence[str], variants: Iterable[str]) -> list[Look]:
    """A look for each of some runs.

    Args:
        of_runs: the variant of each run.
        variants: all variants of the task, in its order.
    """
    by_variant = looks([*variants, *of_runs])
    left = {variant: iter(shades(by_variant[variant], of_runs.count(variant))) for variant in set(of_runs)}
    return [next(left[variant]) for variant in of_runs]


def _spread_lightness(own: float, count: int) -> list[float]:
    """`count` values of lightness, as far from `own` and from each other as possible; the farthest first."""
    def steps(below: int) -> tuple[float, float]:
        return ((own - _DARKEST) / below if below else math.inf,
                (_LIGHTEST - own) / (count - below) if count > below else math.inf)

    below = max(range(count + 1), key=lambda k: min(steps(k)))
    down, up = steps(below)
    values = [*(own - down * k for k in range(1, below + 1)), *(own + up * k for k in range(1, count - below + 1))]
    return sorted(values, key=lambda value: -abs(value - own))


def _lightness(colour: str) -> float:
    """CIE L*: 0 is black, 100 is white."""
    linear = ((part / 255) ** 2.2 for part in _parts(colour))
    luminance = sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return float(116 * max(luminance, 0.009) ** (1 / 3) - 16)


def _of_lightness(colour: str, wanted: float) -> str:
    """The colour, mixed with white or black until it has the wanted lightness."""
    end = 255 if wanted > _lightness(colour) else 0
    mixtures = ("#" + "".join(f"{round(part + k / 255 * (end - part)):02X}" for part in _parts(colour))
                for k in range(256))
    return min(mixtures, key=lambda mixture: abs(_lightness(mixture) - wanted))


def _parts(colour: str) -> list[int]:
    return [int(colour[k:k + 2], 16) for k in (1, 3, 5)]


# Axes --------------------------------------------------------------------------------------------------

def wrapped(text: str, inches: float, size: float = MIDDLE) -> str:
    """A text in lines of at most this width."""
    letters = max(int(inches * 72 / (size * _LETTER)), 8)
    return "\n".join(textwrap.wrap(text, letters, break_on_hyphens=False)) or text


def inches_of(text: str, size: float = MIDDLE) -> float:
    """The estimated width of a line of text."""
    return len(text) * size * _LETTER / 72


def number_axis(axis: Any, percent: bool, logarithmic: bool) -> None:
    """Write the numbers at an axis as the tables do: in percent where they have percent, and not as powers of ten.

    Call this after all lines, because a logarithmic axis over many decades has room for powers of ten only.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if logarithmic:
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1.0,) if high > _DECADES * low else (1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
    if logarithmic or percent:
        axis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.4g}%" if percent else f"{y:.4g}"))


def label_ends(axes: Any, ends: Mapping[str, tuple[float, float]], inches: float) -> None:
    """Write each line's label at its end, to the right of the axes, none over another. Call this after all lines.

    Args:
        axes: matplotlib's.
        ends: the last point of each line.
        inches: the height of the axes.
    """
    if not ends:
        return
    gap = 1.25 * SMALL / 72 / inches
    heights = {label: float(axes.transAxes.inverted().transform(axes.transData.transform(point))[1])
               for label, point in ends.items()}
    for label, place in zip(sorted(heights, key=heights.__getitem__), spread(sorted(heights.values()), gap),
                            strict=True):
        x, y = ends[label]
        axes.annotate(label, (x, y), xytext=(1.03, place), textcoords="axes fraction", va="center", fontsize=SMALL,
                      color="0.15", annotation_clip=False,
                      arrowprops={"arrowstyle": "-", "color": "0.7", "linewidth": 0.6, "shrinkA": 1, "shrinkB": 2})


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Ascending heights, moved as little as needed so that neighbours are at least `gap` apart.

    Heights that are too near make a block around their mean; a block that meets another joins it. A block stays
    between 0 and 1 if it has room there.
    """
    blocks: list[list[float]] = []
    for height in heights:
        blocks.append([height])
        while len(blocks) > 1 and _bottom(blocks[-1], gap) - _top(blocks[-2], gap) < gap:
            last = blocks.pop()
            blocks[-1] += last
    return [_bottom(block, gap) + k * gap for block in blocks for k in range(len(block))]


def _bottom(block: Sequence[float], gap: float) -> float:
    length = gap * (len(block) - 1)
    return max(min(sum(block) / len(block) - length / 2, 1 - length), 0.0)


def _top(block: Sequence[float], gap: float) -> float:
    return _bottom(block, gap) + gap * (len(block) - 1)
