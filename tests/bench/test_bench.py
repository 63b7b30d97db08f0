"""The benchmark of a training step: its record, its check of the peer, and its errors. Nothing here is timed."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import PATIENCE

from duoln.bench import turns
from duoln.bench.records import ratio, spread
from duoln.bench.recurrent import arrays_for
from duoln.bench.schema import check_record, load
from duoln.bench.turns import Entry, Side, check_agreement
from duoln.cli import main
from duoln.errors import DuolnError, MemoryExhaustedError, UsageError
from duoln.kernels import native
from duoln.kernels.attention import cases as attention_cases
from duoln.kernels.recurrent.cases import Shape, flops, least_bytes
from duoln.testing import check_error

SMALL = ["--set", "source=made", "--set", "hidden=16", "--set", "rows=200", "--batch-size", "32"]


def _bench(*args, cwd):
    return subprocess.run([sys.executable, "-m", "duoln", "bench", "train", *SMALL, *args], cwd=cwd, text=True,
                          capture_output=True, check=False, timeout=PATIENCE, env={**os.environ, "COLUMNS": "100"})


@pytest.mark.long
def test_a_record_holds_samples_and_what_they_depend_on(tmp_path):
    out = _bench("--rounds", "2", "--runs", "3", "--json", "record.json", "--label", "here", cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    record = load(tmp_path / "record.json")
    assert record["kind"] == "train" and record["label"] == "here"
    [case] = record["cases"]
    assert (case["op"], case["pass"], case["shape"], case["clock"]) == ("mnist ln", "step", [32], "wall_run")
    assert case["settings"] == {"source": "made", "hidden": 16, "rows": 200} and case["runs"] == 3
    assert len(case["samples"]) == 2 and case["p10"] <= case["median"] <= case["p90"] and case["ratio"] == 1.0
    assert {"duoln", "numpy", "blas_core", "flags", "backend"} <= case["facts"].keys()
    assert "duoln / side" in out.stdout and "duoln / side" not in out.stderr


def test_statistics():
    assert spread([3.0, 1.0, 2.0])["median"] == 2.0
    assert ratio({"samples": [1.0, 4.0, 9.0]}, {"samples": [2.0, 4.0, 3.0]}) == 1.0  # of pairs, not of medians


class _Side:
    def __init__(self, figures, updates=False):
        self.name, self.facts = "peer", {"checks": figures, "checked_updates": updates}


def test_a_peer_that_computes_something_else_is_not_timed():
    check_agreement(_Side([1.0, 0.5]), _Side([1.0, 0.5001]))
    check_error(DuolnError, lambda: check_agreement(_Side([1.0, 0.5]), _Side([1.0, 0.52])), "figure 2 of 2", "0.52")


def test_losses_of_later_updates_may_differ_by_what_a_network_makes_of_rounding():
    check_agreement(_Side([1.0, 0.5, 0.4], updates=True), _Side([1.0, 0.5, 0.402]))
    for theirs, figure in (([1.0, 0.502, 0.4], "figure 2 of 3"), ([1.0, 0.5, 0.41], "figure 3 of 3")):
        check_error(DuolnError, lambda theirs=theirs: check_agreement(_Side([1.0, 0.5, 0.4], updates=True), _Side(theirs)), figure)


@pytest.mark.long
def test_a_side_that_stops_says_why():
    asked = {"kind": "train", "task": "mnist", "variant": "ln", "preset": None, "settings": {"batch_size": 0},
             "backend": None, "peer": None, "plugins": None}
    check_error(UsageError, lambda: Side(Entry("duoln", asked)).ready(), "duoln: [", "batch_size")


@pytest.mark.long
@pytest.mark.parametrize(("program", "kind", "words"), [
    ("import numpy as np; np.empty(1 << 50)", MemoryExhaustedError, "no memory left: Unable to allocate"),
    ("import no_such_module", DuolnError, "ours stopped: ModuleNotFoundError: No module named 'no_such_module'"),
    ("import os; os._exit(3)", DuolnError, "ours stopped: no message")])
def test_an_error_of_a_side_keeps_its_kind(program, kind, words, monkeypatch):
    program = f"from duoln.bench import timed_process; timed_process._answer = lambda: exec({program!r}); timed_process.main()"
    monkeypatch.setattr(turns.processes, "command", lambda *words: [sys.executable, "-c", program])
    with pytest.raises(DuolnError, match=re.escape(words)) as caught:
        Side(Entry("ours", {})).ready()
    assert type(caught.value) is kind


@pytest.mark.long
def test_a_case_that_fails_loses_no_earlier_one(tmp_path, capsys):
    code = main(["bench", "rnn", "--shape", "5,4,8,16", "--shape", "1,1,100000000,1000000", "--rounds", "1", "--runs", "1",
                 "--backend", "numpy", "--json", str(tmp_path / "part.json")])
    assert code == MemoryExhaustedError.exit_code and "no memory left" in capsys.readouterr().err
    assert [case["shape"] for case in json.loads((tmp_path / "part.json").read_text())["cases"]] == [[5, 4, 8, 16]] * 2


@pytest.mark.parametrize(("words", "message"), [
    (("train", "--batch-size", "0"), "--batch-size: expected at least 1, found 0"),
    (("train", "--set", "batch_size=4"), "expected --batch-size"),
    (("rnn", "--peer", "torch"), "--peer needs PyTorch, which is not installed"),
    (("train", "--peer", "torch-fused"), "--peer needs PyTorch, which is not installed"),
    (("wide", "--peer", "jax"), "--peer jax needs JAX, which is not installed")])
def test_a_wrong_option_is_told_before_anything_is_timed(words, message, monkeypatch, capsys):
    for module in ("duoln.bench.operators_torch", "duoln.cli.bench.options"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    monkeypatch.setattr(turns, "Side", None)
    assert main(["bench", *words, "--backend", "numpy"]) == 2 and message in capsys.readouterr().err


@pytest.mark.long
def test_recurrent_layers(tmp_path):
    out = subprocess.run([sys.executable, "-m", "duoln", "bench", "rnn", "--cell", "lstm", "--cell", "gru", "--cell", "rnn",
                          "--norm", "layer", "--shape", "3,2,4,5", "--rounds", "2", "--runs", "2", "--json", "-"],
                         cwd=tmp_path, text=True, capture_output=True, check=True, timeout=PATIENCE)
    record = json.loads(out.stdout)
    check_record(record, "stdout")
    sides = ("duoln", "our products alone")
    assert [(c["op"], c["side"], c["shape"]) for c in record["cases"]] == [
        (f"{cell} layer", side, [3, 2, 4, 5]) for cell in ("lstm", "gru", "rnn") for side in sides]
    ours, products = (record["cases"][k::2] for k in range(2))
    rule = "fused steps" if native.machine_refusal() else "compiled walk"
    assert all(c["rule"] == rule and c["source"] and c["gflops"] > 0 for c in ours)
    assert all(c["rule"] is None and c["source"] is None for c in products)


@pytest.mark.long
@pytest.mark.parametrize("options", [pytest.param((), marks=pytest.mark.long), ("--causal", "--forward")], ids=str)
def test_attention(options, tmp_path):
    out = subprocess.run([sys.executable, "-m", "duoln", "bench", "attention", "--shape", "2,2,9,4", "--rounds", "2", "--runs", "2", "--json", "-", *options],
                         cwd=tmp_path, text=True, capture_output=True, check=True, timeout=PATIENCE)
    record = json.loads(out.stdout)
    check_record(record, "stdout")
    [case] = record["cases"]
    assert (case["op"], case["side"], case["shape"]) == ("attention" + " causal" * bool(options), "duoln", [2, 2, 9, 4])
    assert case["rule"] == ("composed" if native.machine_refusal() else "compiled") and case["gflops"] > 0


def test_products_of_attention_are_counted():
    shape = attention_cases.Shape(2, 3, 4, 5)
    assert attention_cases.flops(shape, causal=False, backward=False) == 2 * 2 * 3 * 2 * 4 * 4 * 5
    assert attention_cases.flops(shape, causal=True, backward=True) == 7 * 2 * 3 * 2 * 4 * 4 * 5 // 2
    assert attention_cases.least_bytes(shape) == 4 * (3 * 2 * 3 * 4 * 5 + 2 * 3 * 4 * 5) and attention_cases.scores_bytes(shape) == 4 * 2 * 3 * 4 * 4


@pytest.mark.few
@pytest.mark.peers
@pytest.mark.parametrize("causal", [False, True])
def test_attention_agrees_where_torch_is_installed(causal, tmp_path):
    out = subprocess.run([sys.executable, "-m", "duoln", "bench", "attention", "--peer", "torch", "--shape", "2,3,33,8", "--rounds", "1", "--runs", "1", "--json", "-",
                          *["--causal"] * causal], cwd=tmp_path, text=True, capture_output=True, check=False, timeout=PATIENCE)
    assert out.returncode == 0, out.stderr
    _check_peers(json.loads(out.stdout)["cases"], ["torch", "torch as installed", "torch, written out"])


@pytest.mark.peers
def test_a_language_model_agrees_where_torch_is_installed(tmp_path):
    """Losses of updates, and logits of tokens, with those of the loop over cells; the sides that are compared are all there."""
    out = subprocess.run([sys.executable, "-m", "duoln", "bench", "language-model", "--peer", "torch", "--sizes", "5,3,16,11", "--rounds", "1", "--runs", "1",
                          "--json", "-"], cwd=tmp_path, text=True, capture_output=True, check=False, timeout=PATIENCE)
    assert out.returncode == 0, out.stderr
    record = json.loads(out.stdout)
    check_record(record, "stdout")
    sides = ["duoln, compiled", "duoln", "torch, LSTM of duoln.bridge", "torch, LN-LSTM by cells", "torch.nn.LSTM, no norm"]
    assert [(case["op"].split(", ", 1)[1], case["side"]) for case in record["cases"]] == [
        (what, side) for what in ("an update", "50 sampled tokens") for side in sides]


def test_products_with_made_weights_are_as_large_as_their_inputs():
    made = arrays_for("lstm", "none", Shape(1, 2, 100, 400))
    assert np.std(made["w_x"]) == pytest.approx(0.1, rel=0.05) and np.std(made["w_h"]) == pytest.approx(0.05, rel=0.05)


def test_products_are_counted():
    assert least_bytes("rnn", Shape(2, 3, 4, 5)) == 4 * (2 * 3 * (4 + 10 + 5) + 9 * 5)
    assert flops("lstm", Shape(2, 3, 4, 5), backward=False) == 2 * 2 * 3 * (4 + 5) * 20
    assert flops("gru", Shape(2, 3, 4, 5), backward=True) == 3 * 2 * 2 * 3 * (4 + 5) * 15


def _check_peers(cases, names):
    """The peers of these names are PyTorch's, and their figures are equal to ours."""
    ours, *others = cases
    assert ours["side"] == "duoln" and np.ptp(ours["facts"]["checks"]) > 0
    peers = [case for case in others if case["side"] in names]
    assert [case["side"] for case in peers] == names
    for case in peers:
        assert case["facts"]["library"].startswith("torch ") and case["samples"]
        assert case["facts"]["checks"] == pytest.approx(ours["facts"]["checks"], rel=1e-4)


@pytest.mark.few
@pytest.mark.peers
@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("norm", ["layer", "none"])
def test_recurrent_peers_agree_where_torch_is_installed(cell, norm, tmp_path):
    out = subprocess.run([sys.executable, "-m", "duoln", "bench", "rnn", "--cell", cell, "--norm", norm, "--peer", "torch",
                          "--shape", "3,2,4,5", "--rounds", "1", "--runs", "1", "--json", "-"], cwd=tmp_path, text=True,
                         capture_output=True, check=False, timeout=PATIENCE)
    assert out.returncode == 0, out.stderr
    _check_peers(json.loads(out.stdout)["cases"], ["torch loop", "torch loop as installed", "torch loop, hoisted"])


@pytest.mark.few
@pytest.mark.peers
@pytest.mark.parametrize("peer", ["torch", "torch-fused"])
def test_the_peer_agrees_where_it_is_installed(peer, tmp_path):
    losses = set()
    for variant in ("none", "bn", "ln"):
        out = _bench("--rounds", "1", "--runs", "2", "--peer", peer, "--variant", variant, "--json", "-", cwd=tmp_path)
        assert out.returncode == 0, out.stderr
        cases = json.loads(out.stdout)["cases"]
        assert {c["op"] for c in cases} == {f"mnist {variant}"}
        _check_peers(cases, [peer, f"{peer} as installed"])
        losses.add(tuple(cases[0]["facts"]["checks"]))
    assert len(losses) == 3  # each variant is a function of its own
