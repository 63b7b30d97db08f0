"""The rules that decide a claim: from the runs of all seeds, or from one finding of `duoln analyze` or an example.

`standing` says how many seeds and updates that takes.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from duoln.plugins.theory.report import EXACT, SHORT, WRONG
from duoln.runs.curve import Curve

Roles = Sequence[Sequence[Curve]]
"""The runs of each role, one for each seed."""
Content = Mapping[str, Any]
_NO_SETTINGS: Mapping[str, Any] = {}


class Figure(NamedTuple):
    """A number on which an answer is based: one value of an exact computation, or one for each seed."""

    what: str
    who: str
    """The variant that has it, or what it is of; empty if that is plain."""
    values: Sequence[float]
    form: str

    def words(self, number: Callable[[Any, str], str]) -> str:
        """The median, and the range of several seeds."""
        ordered = sorted(self.values)
        median, *ends = (number(value, self.form) for value in (statistics.median(ordered), ordered[0], ordered[-1]))
        return f"{self.who} {median}".strip() + (f" ({' to '.join(ends)})" if len(ordered) > 1 else "")


class Answer(NamedTuple):
    """An answer of a rule: whether the claim holds, None if that cannot be told, and the figures that say so."""

    holds: bool | None
    figures: Sequence[Figure]


class Role(NamedTuple):
    """A run that a rule compares: its variant, and settings that it must have."""

    variant: str
    settings: Mapping[str, Any] = {}


class RunRule(NamedTuple):
    """A rule that compares runs. They have one setting, but for what the roles name, the seed and `free`."""

    words: str
    roles: Sequence[Role]
    judge: Callable[[Roles], Answer | None]
    """None if the runs lack a figure."""
    free: Sequence[str] = ()
    """Settings in which the runs may differ: each role has its best learning rate."""
    whole: bool = False
    """True if only runs as long as the paper's decide."""


class FindingRule(NamedTuple):
    """A rule that reads the finding of one analysis. `answer` raises KeyError, TypeError or ValueError for another."""

    words: str
    answer: Callable[[Content], Answer]
    exact: bool = False
    """True for a computation; else networks are trained or drawn, and the figures have a value for each seed."""


class Metric(NamedTuple):
    """A figure of runs, and which values of it are better."""

    key: str
    better: Literal["lowest", "highest"]
    heading: str
    form: str = ".4f"
    level: str = ""
    """The key of the figure that a trivial answer has. A winner that does not beat it has not won."""

    def cost(self, value: float) -> float:
        """The value with its sign such that lower is better; NaN is the worst."""
        return math.inf if math.isnan(value) else value if self.better == "lowest" else -value

    def beaten(self, runs: Sequence[Curve], values: Iterable[float]) -> bool:
        """True if the value of each run is better than that of a trivial answer."""
        return not self.level or all(self.cost(value) < self.cost(run.last[self.level])
                                     for run, value in zip(runs, values, strict=True))


def all_hold(answers: Iterable[bool | None]) -> bool | None:
    """False if one answer is no; None if none is no and one cannot be told."""
    given = set(answers)
    return False if False in given else None if None in given else True


def clear(ours: Sequence[float], theirs: Sequence[float]) -> bool | None:
    """True if each of our values is lower than each of theirs, False if each is greater; else the seeds overlap: None.

    Of two equal laws with five seeds each answer comes with a chance of at most 1/252, whatever the law.
    """
    return True if max(ours) < min(theirs) else False if min(ours) > max(theirs) else None


def _figures(what: str, whose: Iterable[str], values: Iterable[Sequence[float]], form: str) -> list[Figure]:
    return [Figure(what, who, of_one, form) for who, of_one in zip(whose, values, strict=True)]


# Runs -------------------------------------------------------------------------------------------------------

def line(run: Curve, metric: Metric, axis: str = "update") -> dict[float, float]:
    """The finite values of a metric along an axis."""
    return {p[axis]: p[metric.key] for p in run.points if math.isfinite(p.get(metric.key, math.nan))}


def at_end(run: Curve, metric: Metric) -> float | None:
    """The figure with which a run has ended; of one that goes on, that of its last evaluation."""
    value: float | None = run.result.get(metric.key, run.last.get(metric.key))
    return value


def at_best(run: Curve, metric: Metric) -> float | None:
    """The best figure of all evaluations."""
    return min(line(run, metric).values(), default=None, key=metric.cost)


AtWhich = Callable[[Curve, Metric], float | None]
_WHEN: dict[AtWhich, str] = {at_end: "at the end", at_best: "at its best evaluation"}
_Time = tuple[float, float]
"""The updates after which, and by which, something has happened: those of two evaluations."""


def better(winner: str, losers: Sequence[str], metrics: Sequence[Metric], figure: AtWhich = at_end,
           settings: Mapping[str, Any] = _NO_SETTINGS, free: Sequence[str] = ()) -> RunRule:
    """The winner's figure is better than each loser's, in every metric."""
    variants = (winner, *losers)

    def judge(roles: Roles) -> Answer | None:
        figures, answers = list[Figure](), list[bool | None]()
        for metric in metrics:
            values = _values(roles, metric, figure)
            if values is None:
                return None
            ours, *of_losers = [[*map(metric.cost, of_role)] for of_role in values]
            for place, theirs in enumerate(of_losers, start=1):
                answer = clear(ours, theirs)
                ahead = 0 if answer else place
                answers.append(answer if metric.beaten(roles[ahead], values[ahead]) else None)
            figures += _figures(metric.heading, variants, values, metric.form)
        return Answer(all_hold(answers), figures)

    return RunRule(f"{winner} has the better {_listed([m.heading for m in metrics])} {_WHEN[figure]} than "
                   f"{_listed(losers)}", [Role(variant, settings) for variant in variants], judge, free, whole=True)


def sooner(winner: str, loser: str, metrics: Sequence[Metric], share: float = 1.0,
           settings: Mapping[str, Any] = _NO_SETTINGS, free: Sequence[str] = ()) -> RunRule:
    """The winner needs fewer updates, or fewer than a share, for the best level that all runs reach; every metric."""
    def judge(roles: Roles) -> Answer | None:
        figures, answers = list[Figure](), list[bool | None]()
        for metric in metrics:
            costs = _costs(roles, metric)
            if costs is None:
                return None
            least = max(min(of_run.values()) for of_role in costs for of_run in of_role)
            times = [[_first(of_run, least) for of_run in of_role] for of_role in costs]
            level = metric.cost(least)
            told = all(metric.beaten(runs, itertools.repeat(level, len(runs))) for runs in roles)
            answers.append(_before(times, share) if told else None)
            figures += [Figure(f"{metric.heading} that all reach", "", [level], metric.form),
                        *_updates("updates until there", (winner, loser), times)]
        return Answer(all_hold(answers), figures)

    return RunRule(f"{winner} needs {_fewer(share, loser)} to the {_listed([m.heading for m in metrics])} that "
                   "all runs reach", [Role(winner, settings), Role(loser, settings)], judge, free)


def earlier(winner: str, loser: str, metric: Metric, share: float = 1.0, stopped: bool = False,
            settings: Mapping[str, Any] = _NO_SETTINGS, free: Sequence[str] = ()) -> RunRule:
    """The winner's best model comes after fewer updates than the loser's, or fewer than a share of them.

    A run that is best at its last evaluation could become better yet, so it tells nothing. `stopped`: only runs count
    that patience may end.
    """
    def judge(roles: Roles) -> Answer | None:
        costs = _costs(roles, metric)
        if costs is None or (stopped and not all(run.config.get("patience") for runs in roles for run in runs)):
            return None
        times = [[_first(of_run, min(of_run.values())) for of_run in of_role] for of_role in costs]
        ended = all(time[1] < max(of_run) for of_role, of_times in zip(costs, times, strict=True)
                    for of_run, time in zip(of_role, of_times, strict=True))
        return Answer(_before(times, share) if ended else None,
                      _updates("updates to its own best model", (winner, loser), times))

    return RunRule(f"{winner} has its best model, by {metric.heading}, after {_fewer(share, loser)}",
                   [Role(winner, settings), Role(loser, settings)], judge, free)


def alike(variants: tuple[str, str], metric: Metric, within: float) -> RunRule:
    """The final figures of two variants differ by at most a share, with whatever seeds; not if with none."""
    def judge(roles: Roles) -> Answer | None:
        values = _values(roles, metric, at_end)
        if values is None:
            return None
        near = {abs(a - b) <= within * abs(b) for a, b in itertools.product(*values)}
        return Answer(near.pop() if len(near) == 1 else None,
                      _figures(metric.heading, variants, values, metric.form))

    return RunRule(f"the final {metric.heading} of {_listed(variants)} differ by at most {within:.0%}",
                   [Role(variant) for variant in variants], judge, whole=True)


def less_sensitive(variants: tuple[str, str], metric: Metric, setting: str, values: tuple[Any, Any]) -> RunRule:
    """Between two values of a setting the first variant's figure changes by a smaller factor than the second's.

    The figures are those at the last epoch that all runs have evaluated.
    """
    roles = [Role(variant, {setting: value}) for variant in variants for value in values]

    def judge(of_roles: Roles) -> Answer | None:
        by_epoch = [[line(run, metric, "epoch") for run in runs] for runs in of_roles]
        common = set.intersection(*(set(of_run) for runs in by_epoch for of_run in runs))
        figures = [[of_run[max(common)] for of_run in runs] for runs in by_epoch] if common else []
        if not figures or min(map(min, figures)) <= 0:
            return None
        ratios = [[math.exp(abs(math.log(a / b))) for a, b in zip(*figures[k:k + 2], strict=True)] for k in (0, 2)]
        whose = [f"{role.variant} at {role.settings[setting]}" for role in roles]
        return Answer(clear(*ratios), [
            *_figures(f"{metric.heading} after epoch {max(common):g}", whose, figures, metric.form),
            *_figures("changes by a factor of", variants, ratios, ".2f")])

    return RunRule(f"from {setting} {values[0]} to {values[1]} the {metric.heading} of {variants[0]} changes by a "
                   f"smaller factor than that of {variants[1]}, at equal epochs", roles, judge,
                   free=("epochs", "evaluate_every"), whole=True)


def _values(roles: Roles, metric: Metric, figure: AtWhich) -> list[list[float]] | None:
    """The figures of the runs; None if a run has none."""
    values = [[value for run in runs if (value := figure(run, metric)) is not None] for runs in roles]
    return values if list(map(len, values)) == list(map(len, roles)) else None


def _costs(roles: Roles, metric: Metric) -> list[list[dict[float, float]]] | None:
    """The costs of each run by update; None if a run has none."""
    costs = [[{update: metric.cost(value) for update, value in line(run, metric).items()} for run in runs]
             for runs in roles]
    return costs if all(map(all, costs)) else None


def _first(costs: Mapping[float, float], cost: float) -> _Time:
    """The time at which a run first costs at most so much."""
    by = next(update for update, value in costs.items() if value <= cost)
    return max((update for update in costs if update < by), default=0.0), by


def _before(times: Sequence[Sequence[_Time]], share: float) -> bool | None:
    """True if all of the first role are before a share of each time of the second, False if all are after."""
    ours, theirs = times
    if max(by for _, by in ours) < share * min(by for _, by in theirs):
        return True
    return False if min(after for after, _ in ours) >= share * max(by for _, by in theirs) else None


def _updates(what: str, variants: Sequence[str], times: Sequence[Sequence[_Time]]) -> list[Figure]:
    return _figures(what, variants, [[by for _, by in of_role] for of_role in times], ".0f")


def _fewer(share: float, loser: str) -> str:
    return f"fewer updates than {loser}" if share == 1 else f"fewer than {share:.0%} of the updates of {loser}"


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


# Findings ---------------------------------------------------------------------------------------------------

def _of_finding(words: str, exact: bool = False) -> Callable[[Callable[..., Answer]], Callable[..., FindingRule]]:
    """Make a function of a finding and of arguments one that gives the rule for such arguments.

    The words say the rule, with a place for each argument that they name.
    """
    def decorate(answer: Callable[..., Answer]) -> Callable[..., FindingRule]:
        return functools.wraps(answer)(lambda *args: FindingRule(
            words.format(*args), lambda content: answer(content, *args), exact))

    return decorate


@_of_finding(f"the relative error is rounding (at least {WRONG:.0%}: it does not hold)", exact=True)
def stated(content: Content, where: str, *begins: str) -> Answer:
    """The statements of the equations or the geometry are given by `where` and the beginnings of their texts."""
    figures, answers = list[Figure](), list[bool | None]()
    for begin in begins:
        [statement] = [s for s in content["statements"] if s["where"] == where and s["text"].startswith(begin)]
        error = float(statement["error"])
        figures.append(Figure("relative error", statement["text"] if len(begins) > 1 else "", [error], ".1e"))
        answers.append(_small(error, statement["limit"]))
    return Answer(all_hold(answers), figures)


_SHARE = "error of a tenth of a step, as a share of the step's"


@_of_finding(f"{_SHARE}: at most {SHORT:g}", exact=True)
def quadratic(content: Content) -> Answer:
    answer = stated("eq. 8", "KL is the quadratic form").answer(content)
    return answer._replace(figures=[figure._replace(what=_SHARE, form=".2f") for figure in answer.figures])


@_of_finding(f"the relative error is at least {WRONG:.0%}", exact=True)
def denied(content: Content, where: str, *begins: str) -> Answer:
    given = stated(where, *begins).answer(content)
    return given._replace(holds=all(figure.values[0] >= WRONG for figure in given.figures))


@_of_finding("the output changes by no more than epsilon and rounding can cause", exact=True)
def unchanged(content: Content, *cells: tuple[str, str]) -> Answer:
    """The outputs stay in some cells of table 1, given as (norm, transformation)."""
    by_place = {(c["norm"], c["transformation"]): c for c in content["cells"]}
    return Answer(all_hold(by_place[cell]["measured"] for cell in cells), [
        Figure(f"greatest relative change, {transformation}", f"{norm} norm",
               [float(by_place[norm, transformation]["greatest"])], ".1e") for norm, transformation in cells])


@_of_finding("each of the 18 outputs stays or changes as the table has it", exact=True)
def whole_table(content: Content) -> Answer:
    agreeing = [c["measured"] is c["expected"] for c in content["cells"]]
    return Answer(None if any(c["measured"] is None for c in content["cells"]) else all(agreeing), [
        Figure(f"of {len(agreeing)} cells as in the paper", "", [sum(agreeing)], ".0f")])


@_of_finding(f"{{0}}: the metric along each gain changes by rounding alone (at least {WRONG:.0%}: it does not hold)",
             exact=True)
def robust(content: Content, change: str, *norms: str) -> Answer:
    """A change of the inputs leaves the metric along the gains of some models, in both families of outputs."""
    moved = [max(abs(float(e[end]) - 1) for e in content["effects"] for end in ("least", "greatest")
                 if (e["change"], e["norm"]) == (change, norm)) for norm in norms]
    return Answer(all_hold(_small(most, EXACT) for most in moved),
                  _figures("greatest relative change", [f"{norm} norm" for norm in norms], [[m] for m in moved], ".1e"))


def _small(error: float, limit: float) -> bool | None:
    return True if error <= limit else False if error >= WRONG else None


@_of_finding("the gradient that reaches the first time step spans fewer powers of ten, over all scales of the "
             "recurrent weights, than in the plain network")
def stable(content: Content, cell: str) -> Answer:
    spans = _grouped((s["cell"], s["norm"], float(s["span"])) for s in content["spans"])
    both = (spans[cell, "layer"], spans[cell, "none"])
    return Answer(clear(*both), _figures("powers of ten that the gradient spans", ("ln", "none"), both, ".1f"))


@_of_finding("in every layer the means and the deviations of the units' inputs move less between updates; not if in "
             "one layer they move more")
def moves_less(content: Content, variant: str) -> Answer:
    moved = _grouped((kind, m["layer"], m["variant"], statistics.fmean(m[kind]))
                     for kind in ("deviations", "means") for m in content["movements"])
    return _lower([(f"movement of {kind}", f"{layer}:", of_seeds, moved[kind, layer, "none"])
                   for (kind, layer, name), of_seeds in moved.items() if name == variant])


@_of_finding("of {0} none has inputs of layers that all move less between updates")
def nothing_moves_less(content: Content, variants: str) -> Answer:
    answers = {variant: moves_less(variant).answer(content) for variant in variants.split(", ")}
    return Answer(all_hold(None if a.holds is None else not a.holds for a in answers.values()), [
        figure._replace(who=f"{variant}, {figure.who}") for variant, a in answers.items() for figure in a.figures])


@_of_finding("the loss' constant along the gradient, its geometric mean over the training, is lower")
def smoother(content: Content, variant: str) -> Answer:
    constants = _grouped((c["variant"], statistics.geometric_mean(c["loss"])) for c in content["constants"])
    return _lower([("constant of the loss", "", constants[variant,], constants["none",])])


@_of_finding("in every layer units at the border are on in fewer cases than the others")
def rarer_at_border(content: Content, variant: str) -> Answer:
    shares = _grouped((r["layer"], place, r[place]) for r in content["rates"] if r["variant"] == variant
                      for place in ("border", "inside"))
    return Answer(all_hold(clear(shares[layer, "border"], shares[layer, "inside"]) for layer, _ in shares), [
        Figure(f"share that is on, {layer}", place, values, ".0%") for (layer, place), values in shares.items()])


@_of_finding("its error is {1} the level of a solved problem at each longer length, with each seed; at the length of "
             "training it is below")
def solves(content: Content, norm: str, side: Literal["below", "above"]) -> Answer:
    level, trained = [content["solved"]], content["settings"]["length"]
    by_length = _grouped((int(length), math.inf if error is None else error) for run in content["runs"]
                         if (run["norm"], run["choice"]) == (norm, False) for length, error in run["errors"].items())
    longer = [errors for (length,), errors in by_length.items() if length > trained]
    told = all_hold(clear(errors, level) if side == "below" else clear(level, errors) for errors in longer)
    return Answer(told if clear(by_length[trained,], level) else None, [
        Figure(f"error at {length} time steps", norm, errors, ".4f") for (length,), errors in by_length.items()])


@_of_finding("the updates of a plain LSTM by those with layer norm, until the adding problem is learnt, are more at "
             "the {2} {0} than at the other end, with all seeds and at each {1}")
def gains_grow(content: Content, axis: str, across: str, towards: Literal["greatest", "least"]) -> Answer:
    """One of the axes is "length" and one "batch_size"; `towards` is the end of the first."""
    ratios = _grouped((r[axis], r[across], (r["least"], math.inf if r["most"] is None else r["most"]))
                      for r in content["ratios"])
    places = sorted({at for at, _ in ratios}, reverse=towards == "least")
    start, end = places[0], places[-1]
    figures, answers = list[Figure](), list[bool | None]()
    for place in dict.fromkeys(place for _, place in ratios):
        (low, high), (low_end, high_end) = (zip(*ratios[at, place], strict=True) for at in (start, end))
        answers.append(True if min(low_end) > max(high) else False if max(high_end) < min(low) else None)
        figures += _figures(f"plain updates by those of layer norm, at least, {across} {place}",
                            (f"{axis} {start}", f"{axis} {end}"), (low, low_end), ".1f")
    return Answer(all_hold(answers), figures)


def _grouped(rows: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], list[Any]]:
    """The last members of rows, by all members before it."""
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for *key, value in rows:
        groups.setdefault(tuple(key), []).append(value)
    return groups


def _lower(rows: Sequence[tuple[str, str, Sequence[float], Sequence[float]]]) -> Answer:
    """The figures of each row are lower than the plain network's.

    Args:
        rows: each what it is, of whom, the figures of each seed, and the plain network's.
    """
    return Answer(all_hold(clear(ours, plain) for _, _, ours, plain in rows), [
        Figure(f"{what} by that of none", who, [own / without for own, without in zip(ours, plain, strict=True)], ".2f")
        for what, who, ours, plain in rows])
