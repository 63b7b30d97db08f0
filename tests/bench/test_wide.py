"""The rows of `duoln bench wide`: they agree with the peers, and every row that fails is told. Nothing here is timed."""

import json

import numpy as np
import pytest

from duoln.bench import recurrent, timed_process, turns, wide
from duoln.bench.records import ratios
from duoln.bench.schema import check_record
from duoln.bench.wide_rows import EVERY, OTHERS, ROWS
from duoln.cli import main
from duoln.errors import DuolnError

NAMES = [pytest.param(name, marks=[pytest.mark.long] * (name == "adam-3000")) for name in ROWS]

SMALL = {"rnn": {"shape": [3, 4, 5, 6]}, "language-model": {"sizes": [4, 1, 8, 11]}}


def _small(monkeypatch):
    """Every row with axes below 1000."""
    for name, row in ROWS.items():
        shapes = {key: tuple(size if size < 1000 else size % 7 + 3 for size in shape) for key, shape in row.shapes.items()}
        monkeypatch.setitem(ROWS, name, row._replace(shapes=shapes, calls=min(row.calls, 2)))


def test_figures_know_order_and_sign():
    x = np.array([1.0, -2.0, 3.0])
    made = wide.figures([x])
    assert made[0] == pytest.approx(np.sqrt(14)) and wide.figures([x[::-1]])[2] != made[2] and wide.figures([-x])[1] != made[1]


def test_ratios_are_of_rounds():
    assert ratios({"samples": [1.0, 4.0, 9.0]}, {"samples": [2.0, 4.0, 3.0]}) == [0.5, 1.0, 3.0]


def test_sides_that_compute_something_else_are_not_checked():
    sides = {name: {entry.name: entry.checked for entry in wide.entries(name, "numpy", peers)} for name, peers in
             (("lstm-batch", ["torch"]), ("lstm-layer-per-gate", ["jax"]), ("sample-lstm", ["torch"]), ("gelu", ["jax"]))}
    assert sides == {"lstm-batch": {"duoln": True, "layer": False, "torch": True}, "gelu": {"duoln": True, "jax": True},
                     "lstm-layer-per-gate": {"duoln": True, "layer": False},
                     "sample-lstm": {"duoln": True, "torch": True, "nn.LSTM": False}}


def test_rows_are_chosen_by_their_names_and_by_groups():
    assert wide.chosen(["losses", "gelu"]) == ["gelu", "huber", "mse", "bce", "softplus"]
    assert wide.chosen([]) == list(EVERY)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_runs(name, monkeypatch):
    _small(monkeypatch)
    work = wide.prepare({"row": name, "backend": "numpy", "peer": None})
    work.run(0)
    assert work.checks and np.all(np.isfinite(work.checks)) and work.checks[0] > 0


@pytest.mark.peers
@pytest.mark.parametrize("name", [name for name, row in OTHERS.items() if "torch" in row.others and row.ours["kind"] != "start"])
def test_every_layer_agrees_with_torch(name):
    ours, theirs = (_prepared({**entry.asked, **SMALL[entry.asked["kind"]]})
                    for entry in wide.entries(name, "numpy", ["torch"]) if entry.checked)
    theirs.run(0)
    assert theirs.checks == pytest.approx(ours.checks, rel=1e-4) and theirs.facts["library"].startswith("torch ")


def _prepared(asked):
    return (recurrent.prepare if asked["kind"] == "rnn" else timed_process.prepare_language_model)(asked)


@pytest.mark.peers
@pytest.mark.parametrize("name", NAMES)
def test_every_row_agrees_with_torch(name, monkeypatch):
    _small(monkeypatch)
    ours, theirs = (wide.prepare({"row": name, "backend": "numpy", "peer": peer}) for peer in (None, "torch"))
    theirs.run(0)
    assert theirs.checks == pytest.approx(ours.checks, rel=1e-4, abs=1e-6) and theirs.facts["library"].startswith("torch ")


class _Side:
    """A side that fails for one row, and is timed for the others by invented figures."""

    def __init__(self, entry):
        self.name, self.checked, self.ended, self.samples, self.device_samples = entry.name, True, False, [], []
        self.ask(entry.asked)

    def ask(self, asked):
        self.row, self.facts = asked["row"], {"checks": [1.0], "warmups": 1}

    def ready(self):
        if self.row == "exp":
            raise DuolnError("[bench] no")

    def runs(self, count, seconds):
        return [2e-3 if self.name == "duoln" else 1e-3] * count

    def close(self):
        self.ended = True


def test_a_row_that_fails_is_told_and_the_others_are_timed(monkeypatch, capsys):
    monkeypatch.setattr(turns, "Side", _Side)
    monkeypatch.setattr("duoln.bench.operators_torch.check_installed", lambda: None)
    monkeypatch.setattr("duoln.bench.operators.machine_limits", lambda backend: "the limits")
    monkeypatch.setattr("duoln.bench.operators.measure_copy", lambda backend: {"gbps": 10.0})
    assert main(["bench", "wide", "gelu", "exp", "bce", "--peer", "torch", "--backend", "numpy", "--json", "-"]) == 1
    out, err = capsys.readouterr()
    record = json.loads(out)
    check_record(record, "stdout")
    assert [(case["op"], case["side"], case["ratio"]) for case in record["cases"]] == [
        (f"wide {row}", side, ratio) for row in ("gelu", "bce") for side, ratio in (("duoln", 1.0), ("torch", 2.0))]
    assert "exp: [bench] no" in err and "2.00" in err
