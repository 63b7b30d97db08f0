"""The list of what the paper and the chapter contain."""

import dataclasses
import itertools
from importlib.util import find_spec

import pytest

from duoln.cli import build_parser
from duoln.plugins import paper
from duoln.plugins.paper.contents import ENTRIES, LENGTHS
from duoln.plugins.paper.evidence import COMMANDS
from duoln.plugins.paper.rules import FindingRule, RunRule
from duoln.plugins.paper.standing import by_entry, standings
from duoln.runs import kept
from duoln.tasks.registry import Registry
from duoln.tasks.settings import make_config

REGISTRY = Registry()
CLAIMS = [(entry, claim) for entry in ENTRIES for claim in entry.claims]
OF_RUNS = [(entry, claim) for entry, claim in CLAIMS if isinstance(claim.rule, RunRule)]


def _named(pairs):
    return pytest.mark.parametrize(("entry", "claim"), pairs, ids=[f"{e.where}: {c.text}"[:60] for e, c in pairs])


def test_every_table_figure_and_equation_is_there():
    names = [(entry.where, entry.section) for entry in ENTRIES]
    assert len(set(names)) == len(names) and len({(e.where, e.section, c.text) for e, c in CLAIMS}) == len(CLAIMS)
    assert {where for where, _ in names} >= {
        *(f"figure {k}" for k in range(1, 7)), *(f"table {k}" for k in (1, 2, 3)), *(f"chapter, table {k}" for k in (1, 2, 3)),
        "chapter, figures 1-3", "chapter, figures 4-6", "chapter, figure 7", "chapter, figures 8-10", "chapter, 4.3.1", "slides"}
    spans = [where.removeprefix("eq. ").split("-") for where, _ in names if where.startswith("eq.")]
    assert sorted(k for span in spans for k in range(int(span[0]), int(span[-1]) + 1)) == list(range(2, 36))


@_named(CLAIMS)
def test_a_claim_has_its_analysis_or_task_variants_and_settings(entry, claim):
    if isinstance(claim.rule, FindingRule):
        assert entry.analysis in COMMANDS and claim.rule.words and claim.length is None
    elif claim.rule is None:
        assert claim.unmeasured
    else:
        task = REGISTRY.tasks[entry.task].task
        assert (claim.length or LENGTHS[entry.task]).source and claim.rule.words
        for role in claim.rule.roles:
            config = dataclasses.asdict(make_config(task, role.variant, "paper", role.settings))
            assert config.items() >= dict(role.settings).items()


@pytest.mark.few
@_named(OF_RUNS)
def test_its_figures_are_those_of_kept_runs(entry, claim):
    """Of some runs of its variants, whatever their settings."""
    rows, _ = standings(REGISTRY, [kept.kept_folder(REGISTRY.tasks[entry.task].task)])
    settings = next(row.settings for row in rows if row.entry is entry)
    runs = [[run for s in settings if s.variant == role.variant for run in s.runs.values()] for role in claim.rule.roles]
    assert any(claim.rule.judge([[run] for run in chosen]) for chosen in itertools.product(*runs))


@pytest.mark.parametrize(("task", "updates", "batch"), [("mnist", 429, 128), ("draw", 390, 128), ("order_embeddings", 885, 128),
                                                        ("convnet", 500, 100)])
def test_the_length_is_that_of_the_preset(task, updates, batch):
    """Updates an epoch of the paper's data."""
    config = make_config(REGISTRY.tasks[task].task, "ln", "paper")
    assert config.batch_size == batch
    assert LENGTHS[task].updates == config.epochs * updates


@pytest.mark.long
def test_its_command_parses():
    rows = standings(REGISTRY, [])[0]
    assert len(rows) == len(CLAIMS)
    for row in rows:
        assert bool(row.commands) == bool(row.claim.rule)
        for command in row.commands:
            program, *words = command.split()
            assert build_parser().parse_args(words) if program == "duoln" else find_spec(words[1])


@pytest.mark.long
def test_each_claim_is_measured_by_what_is_kept_or_says_why_not():
    rows, refused = standings(REGISTRY, [folder for folder in paper._kept(REGISTRY) if folder != paper._RUNS])
    assert not refused and [entry for entry, _ in by_entry(rows)] == list(ENTRIES)
    of_papers = {entry.task.name for entry in REGISTRY.tasks.values() if entry.task.paper}
    assert {row.entry.task for row in rows if row.evidence} == of_papers and len(of_papers) == 9
    for row in rows:
        assert row.missing == row.claim.unmeasured, row.claim.text
        assert (row.verdict == "not measured") is bool(row.missing), row.claim.text
