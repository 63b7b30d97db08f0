"""Rules that decide a claim from runs of one seed; `verdict` joins the seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from duoln.plugins.paper.claims import Answer, Figure, Role, RunRule, all_hold
from duoln.runs.curve import Curve

_NO_SETTINGS: Mapping[str, Any] = {}


class Metric(NamedTuple):
    """A figure of runs, and which values of it are better."""

    key: str
    better: Literal["lowest", "highest"]
    heading: str
    form: str = ".4f"
    limit: float | None = None
    """The best value there can be, if runs reach it; of two runs that have it neither can be ahead."""

    def reaches(self, value: float, level: float) -> bool:
        """True if a value is at least as good as a level."""
        return value <= level if self.better == "lowest" else value >= level

    def ahead(self, value: float, level: float) -> bool | None:
        """True if a value is better than a level; None if both are the limit."""
        if value == level == self.limit:
            return None
        return value < level if self.better == "lowest" else value > level

    def best(self, values: Sequence[float]) -> float:
        """The best value; NaN only where all are. A comparison with NaN would depend on the order."""
        numbers = [value for value in values if not math.isnan(value)] or [math.nan]
        return min(numbers) if self.better == "lowest" else max(numbers)


def line(run: Curve, metric: Metric, axis: str = "update") -> list[tuple[float, float]]:
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


def better(winner: str, losers: Sequence[str], metrics: Sequence[Metric], figure: AtWhich = at_end,
           settings: Mapping[str, Any] = _NO_SETTINGS, free: Sequence[str] = ()) -> RunRule:
    """The winner's figure is better than each loser's, in every metric; where both are perfect, that cannot be told.

    Settings in `free` may differ between them: each has its best learning rate.
    """
    variants = (winner, *losers)

    def judge(runs: Sequence[Curve]) -> Answer | None:
        figures: list[Figure] = []
        answers: list[bool | None] = []
        for metric in metrics:
            values = [value for value in (figure(run, metric) for run in runs) if value is not None]
            if len(values) < len(runs):
                return None
            answers += [metric.ahead(values[0], value) for value in values[1:]]
            figures += [Figure(metric.heading, variant, value, metric.form)
                        for variant, value in zip(variants, values, strict=True)]
        return Answer(all_hold(answers), figures)

    return RunRule(f"{winner} has the better {_listed([m.heading for m in metrics])} {_WHEN[figure]} than "
                   f"{_listed(losers)}", [Role(variant, settings) for variant in variants], judge, frozenset(free))


def sooner(winner: str, loser: str, metrics: Sequence[Metric], share: float = 1.0,
           settings: Mapping[str, Any] = _NO_SETTINGS, free: Sequence[str] = ()) -> RunRule:
    """The winner reaches the loser's best level in at most a share of the loser's updates, and in fewer; every metric.

    The loser's updates are those to its best evaluation. Both are counted to the evaluation that shows the level. If
    that is the first one of both runs, they cannot tell which was there sooner.
    """
    def judge(runs: Sequence[Curve]) -> Answer | None:
        figures: list[Figure] = []
        answers: list[bool | None] = []
        for metric in metrics:
            of_winner, of_loser = (line(run, metric) for run in runs)
            if not of_loser or not of_winner:
                return None
            level = metric.best([value for _, value in of_loser])
            needed, usual = (next((x for x, value in values if metric.reaches(value, level)), None)
                             for values in (of_winner, of_loser))
            ratio = needed / usual if needed is not None and usual else None
            if (needed, usual) == (of_winner[0][0], of_loser[0][0]):
                ratio = math.nan
                answers.append(None)
            else:
                answers.append(ratio is not None and ratio < 1 and ratio <= share)
            figures += [Figure(f"best {metric.heading}", loser, level, metric.form),
                        Figure(f"updates until there, as a share of {loser}'s", winner, ratio, ".0%")]
        return Answer(all_hold(answers), figures)

    within = "fewer updates" if share == 1 else f"at most {share:.0%} of its updates"
    return RunRule(f"{winner} reaches {loser}'s best {_listed([m.heading for m in metrics])} in {within}",
                   [Role(winner, settings), Role(loser, settings)], judge, frozenset(free))


def earlier(winner: str, loser: str, settings: Mapping[str, Any] = _NO_SETTINGS) -> RunRule:
    """The winner's best model comes after fewer updates than the loser's."""
    def judge(runs: Sequence[Curve]) -> Answer | None:
        if not all(run.config.get("patience") for run in runs):  # else the last model is the result
            return None
        updates = [run.last["update"] for run in runs]
        return Answer(updates[0] < updates[1], [Figure("updates to the best model", variant, update, ".0f")
                                            for variant, update in zip((winner, loser), updates, strict=True)])

    return RunRule(f"{winner} has its best model after fewer updates than {loser}",
                   [Role(winner, settings), Role(loser, settings)], judge)


def alike(variants: tuple[str, str], metric: Metric, within: float) -> RunRule:
    """The final figures of two variants differ by at most a share.

    One variant is ahead while both still learn, so only runs as long as the paper's decide.
    """
    def judge(runs: Sequence[Curve]) -> Answer | None:
        a, b = (at_end(run, metric) for run in runs)
        if a is None or b is None:
            return None
        return Answer(abs(a - b) <= within * abs(b), [
            Figure(metric.heading, variant, value, metric.form)
            for variant, value in zip(variants, (a, b), strict=True)])

    return RunRule(f"the final {metric.heading} of {_listed(variants)} differ by at most {within:.0%}",
                   [Role(variant) for variant in variants], judge, whole=True)


def less_sensitive(variants: tuple[str, str], metric: Metric, setting: str, values: tuple[Any, Any]) -> RunRule:
    """Between two values of a setting the first variant's figure changes by a smaller factor than the second's.

    The figures are those at the last epoch that all four runs have evaluated.
    """
    roles = [Role(variant, {setting: value}) for variant in variants for value in values]

    def judge(runs: Sequence[Curve]) -> Answer | None:
        by_epoch = [dict(line(run, metric, "epoch")) for run in runs]
        common = set.intersection(*map(set, by_epoch))
        figures = [of_run[max(common)] for of_run in by_epoch] if common else []
        if not figures or min(figures) <= 0:
            return None
        ratios = [math.exp(abs(math.log(figures[k] / figures[k + 1]))) for k in (0, 2)]
        what = f"{metric.heading} after epoch {max(common):g}"
        return Answer(ratios[0] < ratios[1], [
            *(Figure(what, f"{role.variant} at {role.settings[setting]}", value, metric.form)
              for role, value in zip(roles, figures, strict=True)),
            *(Figure("changes by a factor of", variant, ratio, ".2f")
              for variant, ratio in zip(variants, ratios, strict=True))])

    return RunRule(f"from {setting} {values[0]} to {values[1]} the {metric.heading} of {variants[0]} changes by a "
                   f"smaller factor than that of {variants[1]}, at equal epochs", roles, judge,
                   free=frozenset({"epochs", "evaluate_every"}))


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
