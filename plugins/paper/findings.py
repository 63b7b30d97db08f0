"""What `duoln analyze --out` has written, and rules that decide a claim from it.

The findings of the present analyses are kept beside them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from duoln.errors import DataFormatError, DuolnError
from duoln.plugins.paper.rules import Figure
from duoln.plugins.theory import statements
from duoln.plugins.theory.statements import EXACT, WRONG
from duoln.runs.folder import read_json

KEPT = Path(statements.__file__).resolve().parent / "results"
KINDS = ("equations", "stability", "invariance", "geometry", "magnitude", "shift", "smoothness")
"""The kinds of `duoln analyze`."""


class Finding(NamedTuple):
    """The result of a kind of `duoln analyze`."""

    path: Path
    time: str
    summary: str
    content: Mapping[str, Any]


class Answer(NamedTuple):
    """What a finding says of a claim: whether it holds, None if that is not clear."""

    holds: bool | None
    figures: Sequence[Figure]


class FindingRule(Protocol):
    """A rule on the finding of one analysis."""

    @property
    def words(self) -> str:
        """The rule."""

    def answer(self, content: Mapping[str, Any]) -> Answer:
        """What a finding says.

        Raises:
            KeyError, TypeError, ValueError: the finding is not of the present analysis.
        """


@dataclass(frozen=True)
class Stated:
    """Statements of the equations or the geometry, by the beginnings of their texts: their errors are rounding."""

    where: str
    begins: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"the relative error is rounding (at least {WRONG:.0%}: it does not hold)"

    def answer(self, content: Mapping[str, Any]) -> Answer:
        figures, answers = [], []
        for begin in self.begins:
            [statement] = [s for s in content["statements"]
                           if s["where"] == self.where and s["text"].startswith(begin)]
            error = float(statement["error"])
            figures.append(Figure("relative error", statement["text"] if len(self.begins) > 1 else "", error, ".1e"))
            answers.append(True if error <= statement["limit"] else False if error >= WRONG else None)
        return Answer(_all(answers), figures)


@dataclass(frozen=True)
class Bounded:
    """A statement of the geometry that says that a figure is small, but no rounding: the analysis has its bound."""

    where: str
    begins: str
    heading: str
    bound: float
    """As in the analysis, whose finding holds it too."""

    @property
    def words(self) -> str:
        return f"{self.heading}: at most {self.bound:g}"

    def answer(self, content: Mapping[str, Any]) -> Answer:
        [statement] = [s for s in content["statements"]
                       if s["where"] == self.where and s["text"].startswith(self.begins)]
        if statement["limit"] != self.bound:
            raise ValueError(f"expected the bound {self.bound:g}, found {statement['limit']!r}")
        value = float(statement["error"])
        return Answer(value <= self.bound, [Figure(self.heading, "", value, ".2f")])


@dataclass(frozen=True)
class Unchanged:
    """Cells of table 1, as (norm, transformation): the output is as the claim has it, changed or not."""

    cells: tuple[tuple[str, str], ...]

    @property
    def words(self) -> str:
        return "the output changes by no more than epsilon and rounding can cause"

    def answer(self, content: Mapping[str, Any]) -> Answer:
        cells = {(c["norm"], c["transformation"]): c for c in content["cells"]}
        chosen = [cells[key] for key in self.cells]
        return Answer(_all([c["measured"] for c in chosen]), [
            Figure(f"greatest relative change, {c['transformation']}", f"{c['norm']} norm", float(c["greatest"]), ".1e")
            for c in chosen])


@dataclass(frozen=True)
class Robust:
    """A change of the inputs leaves the metric along the gains of some models, in both families of outputs."""

    change: str
    norms: tuple[str, ...]

    @property
    def words(self) -> str:
        return (f"{self.change}: the metric along each gain changes by rounding alone "
                f"(at least {WRONG:.0%}: it does not hold)")

    def answer(self, content: Mapping[str, Any]) -> Answer:
        figures, answers = [], []
        for norm in self.norms:
            moved = max(abs(float(e[end]) - 1) for e in content["effects"] for end in ("least", "greatest")
                        if (e["change"], e["norm"]) == (self.change, norm))
            figures.append(Figure("greatest relative change", f"{norm} norm", moved, ".1e"))
            answers.append(True if moved <= EXACT else False if moved >= WRONG else None)
        return Answer(_all(answers), figures)


@dataclass(frozen=True)
class WholeTable:
    """Table 1: every cell is as the paper has it."""

    words: str = "each of the 18 outputs stays or changes as the table has it"

    def answer(self, content: Mapping[str, Any]) -> Answer:
        agreeing = [c["measured"] is c["expected"] for c in content["cells"]]
        return Answer(None if any(c["measured"] is None for c in content["cells"]) else all(agreeing), [
            Figure(f"of {len(agreeing)} cells as in the paper", "", sum(agreeing), ".0f")])


@dataclass(frozen=True)
class Steady:
    """The gradient at the first time step spans fewer powers of ten over the scales of W_h with layer norm."""

    cell: str

    @property
    def words(self) -> str:
        return ("the gradient that reaches the first time step spans fewer powers of ten, over all scales of the "
                "recurrent weights, than in the plain network")

    def answer(self, content: Mapping[str, Any]) -> Answer:
        spans = {norm: _span(w["gradient"][0] for w in content["walks"]
                             if (w["cell"], w["norm"], w["scaled"]) == (self.cell, norm, "w_h"))
                 for norm in ("layer", "none")}
        return Answer(spans["layer"] < spans["none"], [
            Figure("powers of ten that the gradient spans", "ln", spans["layer"], ".1f"),
            Figure("powers of ten that the gradient spans", "none", spans["none"], ".1f")])


@dataclass(frozen=True)
class Steadier:
    """The inputs of every layer move less between updates than in the plain network, with every seed."""

    variant: str
    baseline: str = "none"

    @property
    def words(self) -> str:
        return ("in every layer the means and the deviations of the units' inputs move less between updates, with "
                "every seed; not if in one layer they move more, with every seed")

    def answer(self, content: Mapping[str, Any]) -> Answer:
        moved: dict[tuple[str, str, str], list[float]] = {}
        for movement in content["movements"]:
            for kind in ("means", "deviations"):
                moved.setdefault((movement["variant"], movement["layer"], kind), []).append(
                    statistics.fmean(movement[kind]))
        figures, answers = [], []
        for (variant, layer, kind), of_seeds in moved.items():
            if variant == self.variant:
                shares = [ours / plain for ours, plain in zip(of_seeds, moved[self.baseline, layer, kind], strict=True)]
                figures.append(Figure(f"movement of {kind} by that of {self.baseline}, median of {len(shares)} seeds",
                                      f"{layer}:", statistics.median(shares), ".2f"))
                answers.append(True if max(shares) < 1 else False if min(shares) > 1 else None)
        return Answer(_all(answers), sorted(figures, key=lambda figure: figure.what))


@dataclass(frozen=True)
class Smoother:
    """The Lipschitz constants of the loss and of its gradient are lower than the plain network's, with every seed."""

    variant: str
    baseline: str = "none"

    @property
    def words(self) -> str:
        return ("the constants of the loss and of its gradient along the gradient, their geometric mean over the "
                "training, are lower with every seed; not if one of them is higher with every seed")

    def answer(self, content: Mapping[str, Any]) -> Answer:
        figures, answers = [], []
        for kind in ("loss", "gradient"):
            ours, plain = ([statistics.geometric_mean(c[kind]) for c in content["constants"] if c["variant"] == variant]
                           for variant in (self.variant, self.baseline))
            shares = [own / without for own, without in zip(ours, plain, strict=True)]
            figures.append(Figure(f"constant by that of {self.baseline}, median of {len(shares)} seeds",
                                  f"of the {kind}:", statistics.median(shares), ".2f"))
            answers.append(True if max(shares) < 1 else False if min(shares) > 1 else None)
        return Answer(_all(answers), figures)


def _all(answers: Sequence[bool | None]) -> bool | None:
    """Whether all hold: no if one does not, and unclear if one is unclear."""
    if any(answer is False for answer in answers):
        return False
    return None if any(answer is None for answer in answers) else True


def _span(gradients: Iterable[float]) -> float:
    """An overflow or a gradient of zero makes the span infinite."""
    values = [float(g) for g in gradients]
    if not all(math.isfinite(g) and g > 0 for g in values):
        return math.inf
    return math.log10(max(values) / min(values))


def read_finding(path: Path) -> Finding:
    """A finding.

    Raises:
        CheckpointError: the file is not there. DataFormatError: it is no finding.
    """
    content = read_json(path)
    for key in ("analysis", "time", "summary"):
        if not isinstance(content.get(key), str):
            raise DataFormatError(path, 0, f"a text as {key}", f"{content.get(key)!r:.60}")
    return Finding(path, content["time"], content["summary"], content)


def newest_findings(folders: Sequence[Path], refused: list[str]) -> dict[str, Finding]:
    """The newest finding of each kind in some folders; what cannot be read is added to `refused`."""
    newest: dict[str, Finding] = {}
    for path in (folder / f"{kind}.json" for kind in KINDS for folder in folders):
        if not path.is_file():
            continue
        try:
            finding = read_finding(path)
        except DuolnError as error:
            refused.append(str(error))
            continue
        if path.stem not in newest or finding.time > newest[path.stem].time:
            newest[path.stem] = finding
    return newest
