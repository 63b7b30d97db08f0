"""The state of each claim of the paper: claims, joined with tasks, runs and findings, and the verdict on each.

A verdict is computed from evidence by the rules in `METHOD`, and written nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from duoln.errors import CheckpointError
from duoln.plugins.paper.contents import ENTRIES, LENGTHS, Claim, Entry
from duoln.plugins.paper.evidence import (
    COMMANDS,
    PROVENANCES,
    Evidence,
    Finding,
    Setting,
    choose,
    differences,
    newest_findings,
    read_runs,
)
from duoln.plugins.paper.rules import Answer, Figure, FindingRule, RunRule
from duoln.tasks.registry import Registry
from duoln.tasks.task import Task

Verdict = Literal["holds", "does not hold", "cannot be told", "too short to tell", "not measured"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Kind = Literal["exact", "original, full", "original, short", "substitute"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""The kinds of evidence; an exact one is a computation."""
ENOUGH_SEEDS = 5
METHOD = (
    f"Runs: a claim holds if, of at least {ENOUGH_SEEDS} seeds, each of the variant that should win is better than all "
    "of the other, and does not hold if each is worse. If they overlap, it cannot be told. The winner must beat a "
    "trivial answer, where the task has one. Figures of the end need runs as long as the paper's. Fewer seeds and "
    "shorter runs are too short to tell; what they say is said, too. Runs of several settings are never mixed.",
    "Which runs: those on the best data (original, then substitute, then synthetic), of these the longest, of these "
    "those with the most seeds. The length is that of the shortest run, in updates, by the paper's.",
    "Findings of duoln analyze: exact computations need no seeds; those that train or draw networks need as many as "
    "runs. A claim without runs or a finding is not measured, and the reason stands beside it.")
"""The rules of a verdict, in words."""
_SAYS: dict[bool | None, Verdict] = {True: "holds", False: "does not hold", None: "cannot be told"}


class Standing(NamedTuple):
    """The state of one claim."""

    entry: Entry
    claim: Claim
    task: Task | None = None
    settings: Sequence[Setting] = ()
    """All runs of the task."""
    missing: str = ""
    """The reason why there is no evidence, if there is none."""
    verdict: Verdict = "not measured"
    so_far: str = ""
    """A remark on what evidence says that is no verdict yet."""
    evidence: Evidence | None = None
    finding: Finding | None = None
    measured: Sequence[Figure] = ()

    def decided(self, answer: Answer, seeds: int, long_enough: bool = True) -> Standing:
        """The claim with the verdict of an answer.

        Args:
            answer: what the evidence says.
            seeds: how many there are; an exact computation counts as enough.
            long_enough: whether the runs are as long as the claim needs.
        """
        says = _SAYS[answer.holds]
        if seeds >= ENOUGH_SEEDS and long_enough:
            return self._replace(verdict=says, measured=answer.figures)
        return self._replace(verdict="too short to tell", measured=answer.figures,
                             so_far=f"so far: it {says} ({_seeds(seeds)})")

    @property
    def commands(self) -> list[str]:
        """The commands that reproduce the evidence."""
        if not isinstance(self.claim.rule, RunRule):
            return [] if self.claim.rule is None else [COMMANDS[self.entry.analysis]]
        if self.task is None:
            return []
        by_settings: dict[str, list[str]] = {}
        for role in self.claim.rule.roles:
            chosen = "".join(f" --set {key}={value}" for key, value in role.settings.items())
            by_settings.setdefault(chosen, []).append(role.variant)
        return [f"duoln run {self.task.name} --preset paper --variant {','.join(variants)}{chosen}"
                for chosen, variants in by_settings.items()]

    @property
    def differs(self) -> dict[str, tuple[Any, Any]]:
        """Settings of the runs that are not the paper's, as (ours, the paper's)."""
        if self.evidence is None or self.task is None:
            return {}
        return {key: values for setting in self.evidence.settings
                for key, values in differences(self.task, setting).items()}

    @property
    def kind(self) -> Kind | None:
        """The kind of the evidence."""
        if self.evidence is None:
            exact = isinstance(self.claim.rule, FindingRule) and self.claim.rule.exact
            return None if self.finding is None else "exact" if exact else "substitute"
        if self.evidence.dataset.provenance != PROVENANCES[0]:
            return "substitute"
        return "original, full" if self.evidence.share >= 1 else "original, short"

    @property
    def seeded(self) -> int:
        """The number of seeds; 0 for an exact computation."""
        return len(self.measured[-1].values) if self.kind not in (None, "exact") else 0

    @property
    def basis(self) -> tuple[str, str, str]:
        """The data, the length of the shortest run by the paper's, and the number of seeds, in words."""
        seeds = _seeds(self.seeded) if self.seeded else ""
        if self.evidence:
            run, share = self.evidence.shortest, self.evidence.share
            percent = f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"
            updates = self.evidence.length.at(run.config["batch_size"])
            return (self.evidence.dataset.label, f"{run.points[-1]['update']:,} of {updates:,} updates ({percent})",
                    seeds)
        if self.finding is None:
            return "", "", ""
        kind, content = "exact" if self.kind == "exact" else "random networks", self.finding.content
        return content.get("dataset") or f"{kind}, {content.get('dtype', 'float64')}", "", seeds

    def figures(self, number: Callable[[Any, str], str]) -> str:
        """Our numbers, with a text for each."""
        return "; ".join(f"{what}: {', '.join(m.words(number) for m in of_what)}"
                         for what, of_what in groupby(self.measured, key=lambda m: m.what))


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def standings(registry: Registry, folders: Sequence[Path]) -> tuple[list[Standing], list[str]]:
    """Every claim with the evidence for it in some folders.

    Args:
        registry: the tasks.
        folders: each is a run, a folder of runs, or a folder of such folders, as `runs` is.

    Returns:
        The standings, and a line for each run or finding that could not be read.

    Raises:
        CheckpointError: a folder that is not there, or cannot be read.
    """
    for folder in folders:
        if not folder.is_dir():
            raise CheckpointError(f"{folder}: expected a folder of runs, found "
                                  f"{'a file' if folder.exists() else 'nothing there'}")
    places = list(dict.fromkeys(place for folder in folders for place in _with_subfolders(folder)))
    refused: list[str] = []
    settings = read_runs(registry, places, refused)
    findings = newest_findings(places, refused)
    broken = {b.name: f"plug-in {b.name} is broken: {b.reason}" for b in registry.broken}
    rows = []
    for entry in ENTRIES:
        task = registry.tasks[entry.task].task if entry.task in registry.tasks else None
        missing = broken.get(entry.task, f"no plug-in {entry.task} is loaded") if entry.task and not task else ""
        for claim in entry.claims:
            row = Standing(entry, claim, task, settings.get(entry.task, []), missing or claim.unmeasured)
            if isinstance(claim.rule, RunRule):
                row = _by_runs(row, claim.rule)
            elif claim.rule is not None:
                row = _by_finding(row, claim.rule, findings.get(entry.analysis), refused)
            rows.append(row)
    return rows, list(dict.fromkeys(refused))


def _with_subfolders(folder: Path) -> list[Path]:
    """The folder and the folders in it: runs and findings are in one of these, or right below."""
    try:
        return [folder, *sorted(p for p in folder.iterdir() if p.is_dir())]
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror or error}") from error


def _by_finding(row: Standing, rule: FindingRule, finding: Finding | None, refused: list[str]) -> Standing:
    command = COMMANDS[row.entry.analysis]
    if finding is not None:
        try:
            answer = rule.answer(finding.content)
        except (KeyError, TypeError, ValueError, IndexError):
            refused.append(f"{finding.path}: expected a finding of the present analysis, found another; "
                           f"{command} --out DIR makes it")
        else:
            seeds = ENOUGH_SEEDS if rule.exact else len(answer.figures[-1].values)
            return row._replace(finding=finding).decided(answer, seeds)
    return row._replace(missing=f"no finding kept: {command} --out runs/theory")


def _by_runs(row: Standing, rule: RunRule) -> Standing:
    evidence = None
    if row.task is not None:
        evidence = choose(row.task, rule, row.claim.length or LENGTHS[row.task.name], row.settings)
    if evidence is not None:
        return row._replace(missing="", evidence=evidence).decided(
            evidence.answer, len(evidence.seeds), not rule.whole or evidence.share >= 1)
    names = dict.fromkeys(" ".join([role.variant, *(f"({key} {value})" for key, value in role.settings.items())])
                          for role in rule.roles if not any(setting.fits(role) for setting in row.settings))
    return row._replace(missing=row.missing or (
        f"no run of {', '.join(names)}" if names else "no runs of one setting and seed that have the figures"))


def by_entry(rows: Iterable[Standing]) -> list[tuple[Entry, list[Standing]]]:
    """The claims of each entry."""
    return [(entry, list(of_entry)) for entry, of_entry in groupby(rows, key=lambda row: row.entry)]


def tally(rows: Sequence[Standing]) -> dict[str, dict[Verdict, int]]:
    """The number of claims with each verdict, by the kind of their evidence."""
    return {kind or "none": {word: sum((row.verdict, row.kind) == (word, kind) for row in rows) for word in VERDICTS}
            for kind in (*KINDS, None)}
