"""The findings that `duoln analyze --out` has written, and rules that decide a claim from one.

The findings of the present analyses are kept beside them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln.errors import DataFormatError, DuolnError
from duoln.plugins.paper.claims import Answer, Figure, FindingRule, all_hold, clear
from duoln.plugins.theory import statements
from duoln.plugins.theory.statements import EXACT, WRONG
from duoln.runs.folder import read_json

KEPT = Path(statements.__file__).resolve().parent / "results"
_ANALYSES = ("equations", "stability", "invariance", "geometry", "magnitude", "shift", "smoothness", "borders")
_EXAMPLES = ("adding_lengths", "length_and_batch")
COMMANDS = {**{kind: f"duoln analyze {kind}" for kind in _ANALYSES},
            **{kind: f"python -m duoln.examples.{kind} --seeds 5" for kind in _EXAMPLES}}
"""The command of each kind of finding."""
Content = Mapping[str, Any]


class Finding(NamedTuple):
    """The result of a kind of `duoln analyze`."""

    path: Path
    time: str
    summary: str
    content: Content


# Rules ------------------------------------------------------------------------------------------------------

def stated(where: str, *begins: str, heading: str = "relative error", form: str = ".1e",
           bound: float | None = None) -> FindingRule:
    """The errors of statements of the equations or the geometry are at most the limits that the analysis gives them.

    Args:
        where: as in the statements.
        begins: the beginnings of their texts.
        heading: of the figure that is called an error there.
        form: how the figure is written.
        bound: the limit, where it is more than rounding.
    """
    def answer(content: Content) -> Answer:
        figures, answers = [], []
        for begin in begins:
            [statement] = [s for s in content["statements"] if s["where"] == where and s["text"].startswith(begin)]
            error = float(statement["error"])
            figures.append(Figure(heading, statement["text"] if len(begins) > 1 else "", [error], form))
            answers.append(True if error <= statement["limit"] else False if error >= WRONG else None)
        return Answer(all_hold(answers), figures)

    return FindingRule(f"the {heading} is rounding (at least {WRONG:.0%}: it does not hold)" if bound is None else
                       f"{heading}: at most {bound:g}", answer)


def denied(where: str, *begins: str) -> FindingRule:
    """Each of these statements is wrong: its error is more than rounding."""
    rule = stated(where, *begins)

    def answer(content: Content) -> Answer:
        given = rule.answer(content)
        return given._replace(holds=all_hold([figure.values[0] >= WRONG for figure in given.figures]))

    return FindingRule(f"the relative error is at least {WRONG:.0%}", answer)


def unchanged(*cells: tuple[str, str]) -> FindingRule:
    """The outputs stay in some cells of table 1, given as (norm, transformation)."""
    def answer(content: Content) -> Answer:
        by_place = {(c["norm"], c["transformation"]): c for c in content["cells"]}
        chosen = [by_place[cell] for cell in cells]
        return Answer(all_hold([c["measured"] for c in chosen]), [
            Figure(f"greatest relative change, {c['transformation']}", f"{c['norm']} norm", [float(c["greatest"])],
                   ".1e") for c in chosen])

    return FindingRule("the output changes by no more than epsilon and rounding can cause", answer)


def whole_table() -> FindingRule:
    """Every cell of table 1 is as the paper has it."""
    def answer(content: Content) -> Answer:
        agreeing = [c["measured"] is c["expected"] for c in content["cells"]]
        return Answer(None if any(c["measured"] is None for c in content["cells"]) else all(agreeing), [
            Figure(f"of {len(agreeing)} cells as in the paper", "", [sum(agreeing)], ".0f")])

    return FindingRule("each of the 18 outputs stays or changes as the table has it", answer)


def robust(change: str, *norms: str) -> FindingRule:
    """A change of the inputs leaves the metric along the gains of some models, in both families of outputs."""
    def answer(content: Content) -> Answer:
        figures, answers = [], []
        for norm in norms:
            moved = max(abs(float(e[end]) - 1) for e in content["effects"] for end in ("least", "greatest")
                        if (e["change"], e["norm"]) == (change, norm))
            figures.append(Figure("greatest relative change", f"{norm} norm", [moved], ".1e"))
            answers.append(True if moved <= EXACT else False if moved >= WRONG else None)
        return Answer(all_hold(answers), figures)

    return FindingRule(f"{change}: the metric along each gain changes by rounding alone "
                       f"(at least {WRONG:.0%}: it does not hold)", answer)


def stable(cell: str) -> FindingRule:
    """The gradient at the first time step spans fewer powers of ten over the scales of W_h with layer norm."""
    def answer(content: Content) -> Answer:
        layer, none = ([float(s["span"]) for s in content["spans"] if (s["cell"], s["norm"]) == (cell, norm)]
                       for norm in ("layer", "none"))
        what = "powers of ten that the gradient spans"
        return Answer(clear(layer, none), [Figure(what, "ln", layer, ".1f"), Figure(what, "none", none, ".1f")])

    return FindingRule("the gradient that reaches the first time step spans fewer powers of ten, over all scales of "
                       "the recurrent weights, than in the plain network", answer, exact=False)


def moves_less(variant: str) -> FindingRule:
    """The inputs of every layer move less between updates than in the plain network."""
    def answer(content: Content) -> Answer:
        moved: dict[tuple[str, str, str], list[float]] = {}
        for kind in ("deviations", "means"):
            for movement in content["movements"]:
                key = (kind, movement["layer"], movement["variant"])
                moved.setdefault(key, []).append(statistics.fmean(movement[kind]))
        return _lower([(f"movement of {kind}", f"{layer}:", of_seeds, moved[kind, layer, "none"])
                       for (kind, layer, name), of_seeds in moved.items() if name == variant])

    return FindingRule("in every layer the means and the deviations of the units' inputs move less between updates; "
                       "not if in one layer they move more", answer, exact=False)


def nothing_moves_less(*variants: str) -> FindingRule:
    """No variant moves less than the plain network, by `moves_less`."""
    rules = [moves_less(variant) for variant in variants]

    def answer(content: Content) -> Answer:
        answers = [rule.answer(content) for rule in rules]
        opposite = {True: False, False: True, None: None}
        return Answer(all_hold([opposite[a.holds] for a in answers]), [
            figure._replace(who=f"{variant}, {figure.who}")
            for variant, a in zip(variants, answers, strict=True) for figure in a.figures])

    return FindingRule(f"of {', '.join(variants)} none has inputs of layers that all move less between updates", answer,
                       exact=False)


def smoother(variant: str) -> FindingRule:
    """The Lipschitz constant of the loss is lower than the plain network's."""
    def answer(content: Content) -> Answer:
        ours, plain = ([statistics.geometric_mean(c["loss"]) for c in content["constants"] if c["variant"] == name]
                       for name in (variant, "none"))
        return _lower([("constant of the loss", "", ours, plain)])

    return FindingRule("the loss' constant along the gradient, its geometric mean over the training, is lower", answer,
                       exact=False)


def rarer_at_border(variant: str) -> FindingRule:
    """In every layer the units at the border are turned on less often."""
    def answer(content: Content) -> Answer:
        of_layers: dict[str, list[tuple[float, float]]] = {}
        for each in content["rates"]:
            if each["variant"] == variant:
                of_layers.setdefault(each["layer"], []).append((each["border"], each["inside"]))
        shares = {layer: list(zip(*seeds, strict=True)) for layer, seeds in of_layers.items()}
        return Answer(all_hold([clear(*both) for both in shares.values()]), [
            Figure(f"share that is on, {layer}", who, values, ".0%")
            for layer, both in shares.items() for who, values in zip(("border", "inside"), both, strict=True)])

    return FindingRule("in every layer units at the border are on in fewer cases than the others", answer, exact=False)


def solves(norm: str, holds: bool) -> FindingRule:
    """An LSTM that solves the adding problem at the length of its training does so at longer ones, or (`holds` false)
    it does not.
    """
    def answer(content: Content) -> Answer:
        level, trained = content["solved"], content["settings"]["length"]
        errors: dict[int, list[float]] = {}
        for run in content["runs"]:
            if (run["norm"], run["choice"]) == (norm, False):
                for length, error in run["errors"].items():
                    errors.setdefault(int(length), []).append(math.inf if error is None else error)
        longer = [length for length in errors if length > trained]
        all_solve = all_hold([clear(errors[length], [level]) for length in longer])
        none_solves = all_hold([clear([level], errors[length]) for length in longer])
        known = clear(errors[trained], [level]) is True
        return Answer((all_solve if holds else none_solves) if known else None, [
            Figure(f"error at {length} time steps", norm, values, ".4f") for length, values in errors.items()])

    return FindingRule(f"its error is {'below' if holds else 'above'} the level of a solved problem at each longer "
                       "length, with each seed; at the length of training it is below", answer, exact=False)


def gains_grow(axis: str, across: str, towards: Callable[[Iterable[int]], int]) -> FindingRule:
    """The updates that layer norm saves grow along an axis of the map of lengths and batch sizes.

    Args:
        axis: "length" or "batch_size".
        across: the axis at each of whose places this must hold.
        towards: `max` if it is to grow with the axis, `min` if as it shrinks.
    """
    def answer(content: Content) -> Answer:
        ratios: dict[tuple[int, int], list[tuple[float, float]]] = {}
        for r in content["ratios"]:
            most = math.inf if r["most"] is None else r["most"]
            ratios.setdefault((r[axis], r[across]), []).append((r["least"], most))
        end = towards(place for place, _ in ratios)
        start = (min if towards is max else max)(place for place, _ in ratios)
        figures, answers = list[Figure](), list[bool | None]()
        for place in dict.fromkeys(place for _, place in ratios):
            (low, high), (low_end, high_end) = (zip(*ratios[at, place], strict=True) for at in (start, end))
            answers.append(True if min(low_end) > max(high) else False if max(high_end) < min(low) else None)
            figures += [Figure(f"plain updates by those of layer norm, at least, {across} {place}", f"{axis} {at}",
                               values, ".1f") for at, values in ((start, low), (end, low_end))]
        return Answer(all_hold(answers), figures)

    return FindingRule(f"the updates of a plain LSTM by those with layer norm, until the adding problem is learnt, are "
                       f"more at the {'greatest' if towards is max else 'least'} {axis} than at the other end, with "
                       f"all seeds and at each {across}", answer, exact=False)


def _lower(rows: Sequence[tuple[str, str, Sequence[float], Sequence[float]]]) -> Answer:
    """The figures of each row are lower than the plain network's.

    Args:
        rows: each what it is, of whom, the figures of each seed, and the plain network's.
    """
    return Answer(all_hold([clear(ours, plain) for _, _, ours, plain in rows]), [
        Figure(f"{what} by that of none", who, [own / without for own, without in zip(ours, plain, strict=True)], ".2f")
        for what, who, ours, plain in rows])


# Files ------------------------------------------------------------------------------------------------------

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
    for path in (folder / f"{kind}.json" for kind in COMMANDS for folder in folders):
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
