"""The parts of a survey that measure: their rows, the sanitizer and its output, the limits of a device."""

import argparse
import json
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import GPU, PATIENCE, STAND_IN

from duoln import runtime
from duoln.bench import groups, steps, survey_parts
from duoln.bench.clock import Timer
from duoln.kernels.device_limits import _of_push
from duoln.kernels.launch import Launch
from duoln.randomness import Stream

ROOT = Path(__file__).parents[2]


def _sides(plan):
    return [side.name for side in groups.row_of(plan._asdict()).sides(plan.peers)]


def test_what_the_layers_and_steps_are_compared_with():
    layers = {groups.row_of(plan._asdict()).name: _sides(plan) for plan in survey_parts.plans("rnn", "cupy", False, True)}
    beside = ["our products alone", "duoln, by steps", "duoln in torch", "torch loop", "torch loop, hoisted", "torch.nn.LSTM, no norm"]
    assert layers["lstm layer forward+backward 100x8x400x400, running"] == [*beside, "torch loop, compiled"]
    assert layers["lstm layer forward 100x8x400x400, running"] == beside and len(layers) == 7
    assert _sides(survey_parts.plans("rnn", "numpy", True, False)[0]) == ["our products alone"]
    mnist, *others = map(_sides, survey_parts.plans("steps", "cupy", False, True))
    assert mnist == ["duoln, eager", "torch", "torch, compiled"] and others == [mnist[:2]] * 2  # it takes minutes for DRAW


def test_what_operators_are_compared_with(monkeypatch):
    assert {peers for plan in survey_parts.plans("ops", "numpy", False, False) for peers in plan.peers} == set()
    on_device = survey_parts.plans("ops", "cupy", False, True)
    compiled = [plan for plan in on_device if "torch-compile" in plan.peers]
    assert len(compiled) == 4 and on_device[-4:] == compiled and [plan.peers for plan in compiled] == [["torch", "torch-compile"]] * 4
    monkeypatch.setattr(survey_parts, "find_spec", lambda name: name)
    peers = {plan.row["op"]: plan.peers for plan in survey_parts.plans("ops", "cupy", True, True)}
    assert peers["layer_norm"] == ["torch", "liger"] and peers["softmax_cross_entropy"] == ["torch"]


@pytest.mark.parametrize("plan", survey_parts.plans("steps", "cupy", False, False), ids=lambda plan: plan.row["task"])
def test_the_steps_need_no_data_no_network_and_no_pooch(plan, monkeypatch):
    monkeypatch.setenv("DUOLN_OFFLINE", "1")
    monkeypatch.setenv("DUOLN_DATA", "")
    monkeypatch.setitem(sys.modules, "pooch", None)
    _, cfg, splits = steps.of_task(plan.row)
    assert cfg.source == "made" and splits.dataset.provenance == "synthetic" and splits.train(0)
    assert cfg.batch_size == plan.row["settings"]["batch_size"]


@pytest.mark.peers
@pytest.mark.parametrize(("name", "variant"), [("draw", "ln"), *(
    pytest.param(name, variant, marks=pytest.mark.minutes) for name, variant in (
        ("mnist", "ln"), ("attentive_reader", "ln"), ("handwriting", "ln"), ("las", "both"), ("skip_thoughts", "ln")))])
def test_a_peers_step_stays_on_the_device_on_which_it_was_built(name, variant):
    """PyTorch's "meta" device has shapes without values: a tensor that a step makes elsewhere meets one there and raises."""
    import torch

    task, cfg, splits = steps.of_task({"task": name, "variant": variant, "preset": "smoke", "settings": {}, "plugins": [name]})
    with torch.device("meta"):
        step, facts = task.peer("torch")(cfg, task.model(cfg).init(Stream(0, "init")))
    assert facts["device"] == "meta"
    with pytest.raises(RuntimeError, match=r"item.*meta"):  # the loss has no value there; all before it went well
        step(splits.train(0))


@pytest.mark.long
def test_what_measures_the_device(gpu, monkeypatch):
    from duoln.bench import device

    monkeypatch.setattr(runtime, "backend", lambda name: gpu)
    monkeypatch.setattr(device, "MIB", 1)
    monkeypatch.setattr(device, "ROUNDS", 1)
    for name, limit in device.LIMITS.items():
        if GPU == STAND_IN and limit.blocks and not limit.is_push:  # blocks that are not there at once cannot wait for each other
            continue
        if GPU == STAND_IN and limit.is_push:
            [macros] = [each for each in device.PUSHES if device.PUSH[each["WIDTH"]] is limit.launch]
            monkeypatch.setattr(Launch, "every", [])
            small = Launch("device_limits/push", "push_in_cluster", "heard: own uint32, rounds: int32", _of_push({**macros, "CLUSTER": 2}))
            monkeypatch.setitem(device.LIMITS, name, limit._replace(launch=small, blocks=2))
        work = device.prepare(groups.device(name), {"backend": "cupy"})
        assert Timer(work._replace(most=1)).run() > 0, name


def test_where_the_sanitizer_is_looked_for(tmp_path):
    def place(folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "compute-sanitizer").write_text("")
        (folder / "compute-sanitizer").chmod(0o755)
        return str(folder / "compute-sanitizer")

    assert survey_parts.find_program({"PATH": str(tmp_path / "none")}) is None
    home = place(tmp_path / "cuda" / "bin")
    assert survey_parts.find_program({"PATH": str(tmp_path / "none"), "CUDA_HOME": str(tmp_path / "cuda")}) == home
    beside = place(tmp_path / "other" / "compute-sanitizer")
    assert survey_parts.find_program({"PATH": "", "CUDA_PATH": str(tmp_path / "other")}) == beside
    first = place(tmp_path / "path")
    assert survey_parts.find_program({"PATH": str(tmp_path / "path"), "CUDA_HOME": str(tmp_path / "cuda")}) == first


FAKE = """#!{python}
import sys
tool = sys.argv[sys.argv.index("--tool") + 1]
print("========= COMPUTE-SANITIZER")
if tool == "memcheck":
    assert sys.argv[-1] == "--no-pool"
    print("========= ERROR SUMMARY: 0 errors")
elif tool == "racecheck":
    print("========= Error: race in lstm_forward")
    print("========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)")
    sys.exit(int(sys.argv[sys.argv.index("--error-exitcode") + 1]))
else:
    print("========= Error: Device not supported")
    sys.exit(1)
"""


def test_the_sanitizer_checks_our_kernels_alone():
    every, shared = (set(survey_parts.checked_kernels(tool)) for tool in ("memcheck", "racecheck"))
    assert {"layer_norm_backward", "lstm_walk_forward", "glimpse_forward", "sum_columns"} < shared < every
    assert every - shared == {"take_forward", "take_backward", "latent_forward", "latent_backward"}  # each thread works alone
    in_texts = sum(path.read_text().count("\nENTRY(") for folder in ("kernels", "plugins") for path in (ROOT / folder).rglob("*.cu")
                   if path.parent.name != "device_limits")
    assert len(every) == in_texts
    words = survey_parts.sanitizer_command("compute-sanitizer", "racecheck", "cupy", Path("record.json"))
    assert {word for before, word in pairwise(words) if before == "--kernel-regex"} == {f"kns={name}" for name in shared}


def test_what_the_sanitizer_finds_fails_the_part(tmp_path, monkeypatch):
    (tmp_path / "compute-sanitizer").write_text(FAKE.format(python=sys.executable))
    (tmp_path / "compute-sanitizer").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    args = argparse.Namespace(backend="cupy", json=tmp_path / "sanitizer.json", seconds=float(PATIENCE))
    assert survey_parts.sanitizer(args, runtime.backend("numpy")) == 1
    tools = json.loads((tmp_path / "sanitizer.json").read_text())["tools"]
    assert {tool: result["clean"] for tool, result in tools.items()} == {"memcheck": True, "racecheck": False, "synccheck": None}
    assert tools["memcheck"]["result"] == "ERROR SUMMARY: 0 errors" and "1 hazard" in tools["racecheck"]["result"]
    assert any("race in lstm_forward" in line for line in tools["racecheck"]["output"])
    assert tools["synccheck"]["result"] == "did not run: exit code 1"
    assert any("Device not supported" in line for line in tools["synccheck"]["output"])


def test_cases_that_fail_without_an_error_of_the_sanitizer_are_said():
    output = survey_parts.verdict(1, "========= ERROR SUMMARY: 0 errors")
    assert output["clean"] is None and output["result"] == "ERROR SUMMARY: 0 errors, but the cases ended with exit code 1"
    assert survey_parts.verdict(None, "")["result"].startswith("stopped at")
    assert survey_parts.verdict(0, "no summary")["clean"] is None
