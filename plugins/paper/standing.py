"""The state of each claim of the paper: claims, joined with tasks, runs and findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from duoln.errors import CheckpointError
from duoln.plugins.paper import verdict
from duoln.plugins.paper.chapter import CHAPTER
from duoln.plugins.paper.claims import Answer, Claim, Entry, Figure, FindingRule, RunRule
from duoln.plugins.paper.contents import CONTENTS
from duoln.plugins.paper.evidence import PROVENANCES, Evidence, Setting, choose, differences, fits, read_runs
from duoln.plugins.paper.findings import COMMANDS, Finding, newest_findings
from duoln.plugins.paper.verdict import KINDS, VERDICTS, Kind, Verdict
from duoln.tasks.registry import Registry
from duoln.tasks.task import Task

ENTRIES: tuple[Entry, ...] = (*CONTENTS, *CHAPTER)


def _share(share: float) -> str:
    """A share in percent, with two digits where it is small."""
    return f"{share:.0%}" if share >= 0.1 else f"{100 * share:.2g}%"


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

    @property
    def commands(self) -> list[str]:
        """The commands that reproduce the evidence."""
        if not isinstance(self.claim.rule, RunRule):
            return [] if self.claim.rule is None else [COMMANDS[self.entry.analysis]]
        if self.task is None:
            return []
        paper = " --preset paper" if "paper" in self.task.presets else ""
        by_settings: dict[str, list[str]] = {}
        for role in self.claim.rule.roles:
            chosen = "".join(f" --set {key}={value}" for key, value in role.settings.items())
            by_settings.setdefault(chosen, []).append(role.variant)
        return [f"duoln run {self.task.name}{paper} --variant {','.join(variants)}{chosen}"
                for chosen, variants in by_settings.items()]

    @property
    def differs(self) -> dict[str, tuple[Any, Any]]:
        """Settings of the runs that are not the paper's, as (ours, the paper's)."""
        if self.evidence is None or self.task is None:
            return {}
        return {key: values for setting in self.evidence.settings
                for key, values in differences(self.task, setting).items()}

    @property
    def open(self) -> list[str]:
        """Remarks on what is open on our side, then on the paper's."""
        ours = [self.missing] if self.missing else []
        if self.evidence:
            if self.evidence.dataset.provenance != PROVENANCES[0]:
                ours.append(f"on {self.evidence.dataset.provenance} data only")
            if self.evidence.going:
                ours.append(f"{len(self.evidence.going)} of {len(self.evidence.runs)} runs not ended")
            if self.differs:
                ours.append(f"not the paper's: {', '.join(self.differs)}")
        return [*ours, *([self.entry.open] if self.entry.open else [])]

    @property
    def length(self) -> str:
        """The updates of the shortest run, by the paper's."""
        if self.evidence is None:
            return ""
        run = self.evidence.shortest
        return (f"{run.points[-1]['update']:,} of {self.evidence.length.at(run.config['batch_size']):,} updates "
                f"({_share(self.evidence.share)})")

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
    def seeds(self) -> str:
        """The number of seeds, in words."""
        return f"{self.seeded} seed{'' if self.seeded == 1 else 's'}" if self.seeded else ""

    @property
    def data(self) -> str:
        """The data of the evidence."""
        if self.evidence:
            return self.evidence.dataset.label
        if self.finding is None:
            return ""
        of_training: str = self.finding.content.get("dataset", "")
        kind = "exact" if self.kind == "exact" else "random networks"
        return of_training or f"{kind}, {self.finding.content.get('dtype', 'float64')}"

    def figures(self, number: Callable[[Any, str], str]) -> str:
        """Our numbers, with a text for each."""
        return "; ".join(f"{what}: {', '.join(m.words(number) for m in of_what)}"
                         for what, of_what in groupby(self.measured, key=lambda m: m.what))


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
    places = list(dict.fromkeys(place for folder in folders for place in _below(folder)))
    refused: list[str] = []
    settings = read_runs(registry, places, refused)
    findings = newest_findings(places, refused)
    broken = {b.name: b.reason for b in registry.broken}
    rows = []
    for entry in ENTRIES:
        task = registry.tasks[entry.task].task if entry.task in registry.tasks else None
        missing = ""
        if entry.task and task is None:
            missing = f"plug-in {entry.task} is broken: {broken[entry.task]}" if entry.task in broken else \
                f"no plug-in {entry.task} is loaded"
        for claim in entry.claims:
            row = Standing(entry, claim, task, settings.get(entry.task, []), missing or claim.unmeasured)
            if isinstance(claim.rule, RunRule):
                row = _by_runs(row, claim.rule)
            elif claim.rule is not None:
                row = _by_finding(row, claim.rule, findings.get(entry.analysis), refused)
            rows.append(row)
    return rows, list(dict.fromkeys(refused))


def _below(folder: Path) -> list[Path]:
    """The folder and the folders in it: runs and findings are in one of these, or right below."""
    try:
        return [folder, *sorted(p for p in folder.iterdir() if p.is_dir())]
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror or error}") from error


def _by_finding(row: Standing, rule: FindingRule, finding: Finding | None, refused: list[str]) -> Standing:
    analysis = row.entry.analysis
    if finding is not None:
        try:
            answer = rule.answer(finding.content)
        except (KeyError, TypeError, ValueError, IndexError):
            refused.append(f"{finding.path}: expected a finding of the present analysis, found another; "
                           f"{COMMANDS[analysis]} --out DIR makes it")
        else:
            seeds = verdict.ENOUGH_SEEDS if rule.exact else len(answer.figures[-1].values)
            return _decided(row._replace(finding=finding), answer, seeds)
    return row._replace(missing=f"no finding kept: {COMMANDS[analysis]} --out runs/theory")


def _by_runs(row: Standing, rule: RunRule) -> Standing:
    claim, evidence = row.claim, None
    if row.task is not None and claim.length is not None:
        evidence = choose(row.task, rule, claim.length, row.settings)
    if evidence is None:
        return row._replace(missing=row.missing or _lacking(rule, row.settings))
    return _decided(row._replace(missing="", evidence=evidence), evidence.answer, len(evidence.seeds),
                    not rule.whole or evidence.share >= 1)


def _decided(row: Standing, answer: Answer, seeds: int, long_enough: bool = True) -> Standing:
    decided = verdict.of_seeds(answer.holds, seeds, long_enough)
    return row._replace(verdict=decided, measured=answer.figures,
                        so_far=verdict.so_far(answer.holds, seeds) if decided == "too short to tell" else "")


def _lacking(rule: RunRule, settings: Sequence[Setting]) -> str:
    """A sentence about the runs that a rule needs and that are not there."""
    names = dict.fromkeys(" ".join([role.variant, *(f"({key} {value})" for key, value in role.settings.items())])
                          for role in rule.roles if not any(fits(role, setting) for setting in settings))
    return f"no run of {', '.join(names)}" if names else "no runs of one setting and seed that have the figures"


def by_entry(rows: Iterable[Standing]) -> list[tuple[Entry, list[Standing]]]:
    """The claims of each entry."""
    return [(entry, list(of_entry)) for entry, of_entry in groupby(rows, key=lambda row: row.entry)]


def tally(rows: Sequence[Standing]) -> dict[str, dict[Verdict, int]]:
    """The number of claims with each verdict, by the kind of their evidence."""
    return {kind or "none": {word: sum((row.verdict, row.kind) == (word, kind) for row in rows) for word in VERDICTS}
            for kind in (*KINDS, None)}
