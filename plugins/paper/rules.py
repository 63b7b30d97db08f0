"""Rules that decide a claim from runs: each looks at one seed, with a run for each of its roles.

What follows from several seeds says `duoln.plugins.paper.verdict`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from duoln.runs.curve import Curve


class Metric(NamedTuple):
    """A figure of runs, and which values of it are better."""

    key: str
    better: Literal["lowest", "highest"]
    heading: str
    form: str = ".4f"
    limit: float | None = None
    """The best value there can be, if runs reach it; of two runs that have it neither can be ahead."""

    def reaches(self, value: float, level: float) -> bool:
        """Whether a value is at least as good as a level."""
        return value <= level if self.better == "lowest" else value >= level

    def beats(self, value: float, level: float) -> bool:
        """Whether a value is better than a level."""
        return value < level if self.better == "lowest" else value > level

    def ahead(self, value: float, level: float) -> bool | None:
        """Whether a value is better than a level; None if both are the limit."""
        return None if value == level == self.limit else self.beats(value, level)

    def best(self, values: Sequence[float]) -> float:
        """The best value; NaN only where all are. What a comparison with NaN gives depends on the order."""
        numbers = [value for value in values if not math.isnan(value)] or [math.nan]
        return min(numbers) if self.better == "lowest" else max(numbers)


class Role(NamedTuple):
    """A run that a rule needs: its variant, and settings that it must have."""

    variant: str
    settings: Mapping[str, Any] = {}


class Figure(NamedTuple):
    """A number on which a rule's answer is based."""

    what: str
    who: str
    """The run that has it, or what it is of; empty if that is plain."""
    value: float | None
    """None: the run does not reach what was asked for. NaN: its evaluations cannot tell."""
    form: str


class Seen(NamedTuple):
    """What one seed says of a claim."""

    holds: bool | None
    """None if the runs cannot tell."""
    figures: Sequence[Figure]


@runtime_checkable
class RunRule(Protocol):
    """A rule."""

    @property
    def roles(self) -> Sequence[Role]:
        """The runs that it compares. They have one setting, but for what the roles name, the seed and `free`."""

    @property
    def free(self) -> frozenset[str]:
        """Settings in which the runs may differ."""

    @property
    def needs(self) -> float:
        """The least share of the paper's length at which several seeds are a verdict."""

    @property
    def words(self) -> str:
        """The rule."""

    def judge(self, runs: Sequence[Curve]) -> Seen | None:
        """What runs of one seed say, in the order of the roles; None if they lack a figure."""


def line(run: Curve, metric: Metric, axis: str = "step") -> list[tuple[float, float]]:
    """The finite values of a metric along an axis."""
    return [(p[axis], p[metric.key]) for p in run.points if math.isfinite(p.get(metric.key, math.nan))]


def at_end(run: Curve, metric: Metric) -> float | None:
    """The figure with which a run has ended; of one that goes on, that of its last evaluation."""
    value: float | None = run.result.get(metric.key, run.last.get(metric.key))
    return value


def at_best(run: Curve, metric: Metric) -> float | None:
    """The best figure of all evaluations."""
    values = [value for _, value in line(run, metric)]
    return metric.best(values) if values else None


AtWhich = Callable[[Curve, Metric], float | None]
_WHEN: dict[AtWhich, str] = {at_end: "at the end", at_best: "at its best evaluation"}


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """A rule that compares a run of each of some variants."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """What all of the runs must have."""
    free: frozenset[str] = frozenset()

    @property
    def needs(self) -> float:
        return 0.0

    @property
    def compared(self) -> Sequence[str]:
        """The variants."""
        raise NotImplementedError

    @property
    def roles(self) -> list[Role]:
        return [Role(variant, self.settings) for variant in self.compared]


@dataclass(frozen=True)
class Better(_Comparison):
    """The winner's figure is better than each loser's, in every metric; where both are perfect, that cannot be told."""

    winner: str
    losers: tuple[str, ...]
    metrics: tuple[Metric, ...]
    figure: AtWhich = at_end

    @property
    def compared(self) -> Sequence[str]:
        return (self.winner, *self.losers)

    @property
    def words(self) -> str:
        return (f"{self.winner} has the better {_listed(m.heading for m in self.metrics)} {_WHEN[self.figure]} than "
                f"{_listed(self.losers)}")

    def judge(self, runs: Sequence[Curve]) -> Seen | None:
        figures: list[Figure] = []
        answers: list[bool | None] = []
        for metric in self.metrics:
            values = [self.figure(run, metric) for run in runs]
            present = [value for value in values if value is not None]
            if len(present) < len(values):
                return None
            first, *others = present
            answers += [metric.ahead(first, value) for value in others]
            figures += [Figure(metric.heading, role.variant, value, metric.form)
                        for role, value in zip(self.roles, present, strict=True)]
        return Seen(_all_of(answers), figures)


@dataclass(frozen=True)
class Sooner(_Comparison):
    """The winner reaches the loser's best level in at most a share of the loser's updates, and in fewer; every metric.

    The loser's updates are those to its best evaluation. Both are counted to the evaluation that shows the level. If
    that is the first one of both runs, they cannot tell which was there sooner.
    """

    winner: str
    loser: str
    metrics: tuple[Metric, ...]
    share: float = 1.0

    @property
    def compared(self) -> Sequence[str]:
        return (self.winner, self.loser)

    @property
    def words(self) -> str:
        within = "fewer updates" if self.share == 1 else f"at most {self.share:.0%} of its updates"
        return (f"{self.winner} reaches {self.loser}'s best {_listed(m.heading for m in self.metrics)} in {within}")

    def judge(self, runs: Sequence[Curve]) -> Seen | None:
        figures: list[Figure] = []
        answers: list[bool | None] = []
        winner, loser = runs
        for metric in self.metrics:
            if not line(loser, metric) or not line(winner, metric):
                return None
            level = metric.best([value for _, value in line(loser, metric)])
            usual, needed = (next((x for x, value in line(run, metric) if metric.reaches(value, level)), None)
                             for run in (loser, winner))
            ratio = needed / usual if needed is not None and usual else None
            if all(x == line(run, metric)[0][0] for run, x in ((loser, usual), (winner, needed))):
                ratio = math.nan
                answers.append(None)
            else:
                answers.append(ratio is not None and ratio < 1 and ratio <= self.share)
            figures += [Figure(f"best {metric.heading}", self.loser, level, metric.form),
                        Figure(f"updates until there, as a share of {self.loser}'s", self.winner, ratio, ".0%")]
        return Seen(_all_of(answers), figures)


@dataclass(frozen=True)
class Earlier(_Comparison):
    """The winner's best model comes after fewer updates than the loser's."""

    winner: str
    loser: str

    @property
    def compared(self) -> Sequence[str]:
        return (self.winner, self.loser)

    @property
    def words(self) -> str:
        return f"{self.winner} has its best model after fewer updates than {self.loser}"

    def judge(self, runs: Sequence[Curve]) -> Seen | None:
        if not all(run.config.get("patience") for run in runs):  # else the last model is the result
            return None
        steps = [run.last["step"] for run in runs]
        return Seen(steps[0] < steps[1], [Figure("updates to the best model", role.variant, step, ".0f")
                                          for role, step in zip(self.roles, steps, strict=True)])


@dataclass(frozen=True)
class Alike(_Comparison):
    """The final figures of two variants differ by at most a share.

    One variant is ahead while both still learn, so only runs as long as the paper's decide.
    """

    variants: tuple[str, str]
    metric: Metric
    within: float

    @property
    def needs(self) -> float:
        return 1.0

    @property
    def compared(self) -> Sequence[str]:
        return self.variants

    @property
    def words(self) -> str:
        return f"the final {self.metric.heading} of {_listed(self.variants)} differ by at most {self.within:.0%}"

    def judge(self, runs: Sequence[Curve]) -> Seen | None:
        a, b = (at_end(run, self.metric) for run in runs)
        if a is None or b is None:
            return None
        return Seen(abs(a - b) <= self.within * abs(b), [
            Figure(self.metric.heading, variant, value, self.metric.form)
            for variant, value in zip(self.variants, (a, b), strict=True)])


@dataclass(frozen=True)
class Steadier:
    """Between two values of a setting the first variant's figure changes by a smaller factor than the second's.

    The figures are those at the last epoch that all four runs have evaluated.
    """

    variants: tuple[str, str]
    metric: Metric
    setting: str
    values: tuple[Any, Any]
    free: frozenset[str] = frozenset({"epochs", "evaluate_every"})
    needs: float = 0.0

    @property
    def roles(self) -> list[Role]:
        return [Role(variant, {self.setting: value}) for variant in self.variants for value in self.values]

    @property
    def words(self) -> str:
        return (f"from {self.setting} {self.values[0]} to {self.values[1]} the {self.metric.heading} of "
                f"{self.variants[0]} changes by a smaller factor than that of {self.variants[1]}, at equal epochs")

    def judge(self, runs: Sequence[Curve]) -> Seen | None:
        by_epoch = [dict(line(run, self.metric, "epoch")) for run in runs]
        common = set.intersection(*map(set, by_epoch))
        if not common:
            return None
        figures = [values[max(common)] for values in by_epoch]
        if min(figures) <= 0:
            return None
        ratios = [math.exp(abs(math.log(figures[k] / figures[k + 1]))) for k in (0, 2)]
        what = f"{self.metric.heading} after epoch {max(common):g}"
        return Seen(ratios[0] < ratios[1], [
            *(Figure(what, f"{role.variant} at {role.settings[self.setting]}", value, self.metric.form)
              for role, value in zip(self.roles, figures, strict=True)),
            *(Figure("changes by a factor of", variant, ratio, ".2f")
              for variant, ratio in zip(self.variants, ratios, strict=True))])


def _all_of(answers: Sequence[bool | None]) -> bool | None:
    """Whether all hold; None if some cannot tell and none fails."""
    return False if False in answers else None if None in answers else True


def _listed(names: Any) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
