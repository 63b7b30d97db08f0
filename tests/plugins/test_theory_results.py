"""The findings that are kept beside the analyses: they can be read, and are those of the present analyses."""

import json

import pytest

import duoln
from duoln.cli import main
from duoln.plugins.paper.findings import KEPT, read_finding

SMALL = {"invariance": ["--draws", "2"], "geometry": ["--cases", "40"], "stability": ["--steps", "2"], "equations": [], "magnitude": ["--cases", "40"]}
for _kind in ("shift", "smoothness"):
    SMALL[_kind] = ["--preset", "smoke", "--updates", "5", "--set", "utterances=12", "--set", "batch_size=4", "--set", "buckets=2", "--set", "mels=3"]
NAMES = ("where", "text", "holds", "limit", "norm", "transformation", "expected", "cell", "scaled", "scale")
"""What tells the members of a list apart; everything else is measured."""


def _shape(value):
    """The keys of an object, and of a list of objects the names of each; a measured value is its kind alone."""
    if isinstance(value, dict):
        return {key: value[key] if key in NAMES else _shape(value[key]) for key in value}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_shape(item) for item in value]
    return isinstance(value, list)


@pytest.mark.few
@pytest.mark.parametrize("kind", SMALL)
def test_a_kept_finding_is_of_the_present_analysis(kind, capsys):
    assert main(["analyze", kind, "--backend", "numpy", "--json", *SMALL[kind]]) == 0
    present = json.loads(capsys.readouterr().out)
    kept = read_finding(KEPT / f"{kind}.json")
    facts = {key: value for key, value in kept.content.items() if key != "backend"}
    assert _shape(facts) == _shape({key: value for key, value in present.items() if key != "backend"})
    assert kept.content["agrees"] is present["agrees"] and kept.summary and duoln.__version__


def test_every_analysis_is_kept():
    assert sorted(path.stem for path in KEPT.iterdir()) == sorted(SMALL)
