"""Rules that decide a claim from the runs of all seeds; `verdict` says how many seeds and updates that takes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from duoln.plugins.paper.claims import Answer, Figure, Role, RunRule, all_hold, clear
from duoln.runs.curve import Curve

_NO_SETTINGS: Mapping[str, Any] = {}


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

    def beaten(self, runs: Sequence[Curve], values: Sequence[float]) -> bool:
        """True if the value of each run is better than that of a trivial answer."""
        return not self.level or all(self.cost(value) < self.cost(run.last[self.level])
                                     for run, value in zip(runs, values, strict=True))


def line(run: Curve, metric: Metric, axis: str = "update") -> list[tuple[float, float]]:
    """The finite values of a metric along an axis."""
    return [(p[axis], p[metric.key]) for p in run.points if math.isfinite(p.get(metric.key, math.nan))]


def at_end(run: Curve, metric: Metric) -> float | None:
    """The figure with which a run has ended; of one that goes on, that of its last evaluation."""
    value: float | None = run.result.get(metric.key, run.last.get(metric.key))
    return value


def at_best(run: Curve, metric: Metric) -> float | None:
    """The best figure of all evaluations."""
    return min((value for _, value in line(run, metric)), default=None, key=metric.cost)


AtWhich = Callable[[Curve, Metric], float | None]
_WHEN: dict[AtWhich, str] = {at_end: "at the end", at_best: "at its best evaluation"}
_Time = tuple[float, float]
"""The updates after which, and by which, something has happened: those of two evaluations."""


def better(winner: str, losers: Sequence[str], metrics: Sequence[Metric], figure: AtWhich = at_end,
           settings: Mapping[str, Any] = _NO_SETTINGS, free: Sequence[str] = ()) -> RunRule:
    """The winner's figure is better than each loser's, in every metric.

    Settings in `free` may differ between them: each has its best learning rate.
    """
    variants = (winner, *losers)

    def judge(roles: Sequence[Sequence[Curve]]) -> Answer | None:
        figures: list[Figure] = []
        answers: list[bool | None] = []
        for metric in metrics:
            values = [[value for run in runs if (value := figure(run, metric)) is not None] for runs in roles]
            if list(map(len, values)) != list(map(len, roles)):
                return None
            costs = [[*map(metric.cost, of_role)] for of_role in values]
            for place in range(1, len(roles)):
                answer = clear(costs[0], costs[place])
                ahead = 0 if answer else place
                answers.append(answer if metric.beaten(roles[ahead], values[ahead]) else None)
            figures += [Figure(metric.heading, variant, of_role, metric.form)
                        for variant, of_role in zip(variants, values, strict=True)]
        return Answer(all_hold(answers), figures)

    return RunRule(f"{winner} has the better {_listed([m.heading for m in metrics])} {_WHEN[figure]} than "
                   f"{_listed(losers)}", [Role(variant, settings) for variant in variants], judge, frozenset(free),
                   whole=True)


def sooner(winner: str, loser: str, metrics: Sequence[Metric], share: float = 1.0,
           settings: Mapping[str, Any] = _NO_SETTINGS, free: Sequence[str] = ()) -> RunRule:
    """The winner needs fewer updates, or fewer than a share, for the best level that all runs reach; every metric."""
    def judge(roles: Sequence[Sequence[Curve]]) -> Answer | None:
        figures: list[Figure] = []
        answers: list[bool | None] = []
        for metric in metrics:
            costs = _costs(roles, metric)
            if costs is None:
                return None
            least = max(min(of_run.values()) for of_role in costs for of_run in of_role)
            times = [[_first(of_run, least) for of_run in of_role] for of_role in costs]
            level = metric.cost(least)
            told = all(metric.beaten(runs, [level] * len(runs)) for runs in roles)
            answers.append(_before(times, share) if told else None)
            figures += [Figure(f"{metric.heading} that all reach", "", [level], metric.form),
                        *_updates("updates until there", (winner, loser), times)]
        return Answer(all_hold(answers), figures)

    return RunRule(f"{winner} needs {_fewer(share, loser)} to the {_listed([m.heading for m in metrics])} that "
                   "all runs reach", [Role(winner, settings), Role(loser, settings)], judge, frozenset(free))


def earlier(winner: str, loser: str, metric: Metric, share: float = 1.0, stopped: bool = False,
            settings: Mapping[str, Any] = _NO_SETTINGS, free: Sequence[str] = ()) -> RunRule:
    """The winner's best model comes after fewer updates than the loser's, or fewer than a share of them.

    A run that is best at its last evaluation could become better yet, so it tells nothing. `stopped`: only runs count
    that patience may end.
    """
    def judge(roles: Sequence[Sequence[Curve]]) -> Answer | None:
        costs = _costs(roles, metric)
        if costs is None or (stopped and not all(run.config.get("patience") for runs in roles for run in runs)):
            return None
        times = [[_first(of_run, min(of_run.values())) for of_run in of_role] for of_role in costs]
        ended = all(time[1] < max(of_run) for of_role, of_times in zip(costs, times, strict=True)
                    for of_run, time in zip(of_role, of_times, strict=True))
        return Answer(_before(times, share) if ended else None,
                      _updates("updates to its own best model", (winner, loser), times))

    return RunRule(f"{winner} has its best model, by {metric.heading}, after {_fewer(share, loser)}",
                   [Role(winner, settings), Role(loser, settings)], judge, frozenset(free))


def _costs(roles: Sequence[Sequence[Curve]], metric: Metric) -> list[list[dict[float, float]]] | None:
    """The costs of each run by update; None if a run has none."""
    costs = [[{update: metric.cost(value) for update, value in line(run, metric)} for run in runs] for runs in roles]
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
    return [Figure(what, variant, [by for _, by in of_role], ".0f")
            for variant, of_role in zip(variants, times, strict=True)]


def _fewer(share: float, loser: str) -> str:
    return f"fewer updates than {loser}" if share == 1 else f"fewer than {share:.0%} of the updates of {loser}"


def alike(variants: tuple[str, str], metric: Metric, within: float) -> RunRule:
    """The final figures of two variants differ by at most a share, with whatever seeds; not if with none."""
    def judge(roles: Sequence[Sequence[Curve]]) -> Answer | None:
        values = [[value for run in runs if (value := at_end(run, metric)) is not None] for runs in roles]
        if list(map(len, values)) != list(map(len, roles)):
            return None
        near = {abs(a - b) <= within * abs(b) for a, b in itertools.product(*values)}
        return Answer(near.pop() if len(near) == 1 else None, [
            Figure(metric.heading, variant, of_role, metric.form)
            for variant, of_role in zip(variants, values, strict=True)])

    return RunRule(f"the final {metric.heading} of {_listed(variants)} differ by at most {within:.0%}",
                   [Role(variant) for variant in variants], judge, whole=True)


def less_sensitive(variants: tuple[str, str], metric: Metric, setting: str, values: tuple[Any, Any]) -> RunRule:
    """Between two values of a setting the first variant's figure changes by a smaller factor than the second's.

    The figures are those at the last epoch that all runs have evaluated.
    """
    roles = [Role(variant, {setting: value}) for variant in variants for value in values]

    def judge(of_roles: Sequence[Sequence[Curve]]) -> Answer | None:
        by_epoch = [[dict(line(run, metric, "epoch")) for run in runs] for runs in of_roles]
        common = set.intersection(*(set(of_run) for runs in by_epoch for of_run in runs))
        figures = [[of_run[max(common)] for of_run in runs] for runs in by_epoch] if common else []
        if not figures or min(map(min, figures)) <= 0:
            return None
        ratios = [[math.exp(abs(math.log(a / b))) for a, b in zip(*figures[k:k + 2], strict=True)] for k in (0, 2)]
        what = f"{metric.heading} after epoch {max(common):g}"
        return Answer(clear(*ratios), [
            *(Figure(what, f"{role.variant} at {role.settings[setting]}", of_role, metric.form)
              for role, of_role in zip(roles, figures, strict=True)),
            *(Figure("changes by a factor of", variant, of_role, ".2f")
              for variant, of_role in zip(variants, ratios, strict=True))])

    return RunRule(f"from {setting} {values[0]} to {values[1]} the {metric.heading} of {variants[0]} changes by a "
                   f"smaller factor than that of {variants[1]}, at equal epochs", roles, judge,
                   free=frozenset({"epochs", "evaluate_every"}), whole=True)


def _listed(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
