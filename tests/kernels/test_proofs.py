"""Fused rules of a GPU are proved before they are trusted: verdicts, what is kept, and a whole run over broken kernels."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import GPU, PATIENCE, STAND_IN

from duoln.core import Rule
from duoln.kernels import proofs
from duoln.system.processes import WorkerLostError

ROOT = Path(__file__).parents[2]


class Prover:
    """In the place of a process that proves; it gives what it was made with, an error too."""

    def __init__(self, *answers, start=None):
        self.answers, self.start, self.asked, self.ended = list(answers), start, [], 0

    def ready(self, seconds):
        if self.start:
            raise self.start

    def ask(self, request, seconds):
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def end(self):
        self.ended += 1


WRONG = {"case": "layer_norm 9 x 64", "reason": "output 0, 3 of what is allowed", "ended": False}
HUNG = WorkerLostError("hung: no answer in 20 s", "layer_norm 5 x 33", hung=True)
NO_MEMORY = {"case": "", "reason": "OutOfMemoryError: 512 bytes", "ended": False}


def _kept(backend):
    return [proofs.Verdict(**verdict) for verdict in proofs.Proofs(backend).kept()]


@pytest.fixture
def prove(numpy_backend, tmp_path, monkeypatch, capsys):
    """A function: what the rule `fast` of an operator `op` may not do here, from the answers of a prover."""
    monkeypatch.setenv("DUOLN_CACHE", str(tmp_path))
    monkeypatch.delenv("DUOLN_PROVE")

    def ask(prover, op="op", attrs=(), arrays=(np.ones(1, np.float32),)):
        made = proofs.Proofs(numpy_backend, lambda: prover)
        try:
            return made.refusal(op, Rule("fast", lambda: None), arrays, dict(attrs)), made
        finally:
            made._end_idle()
            made._idle and made._idle.cancel()

    return ask


def test_a_rule_that_is_right_runs_and_is_proved_once(prove, capsys):
    prover = Prover(None)
    assert prove(prover)[0] is None
    assert prover.asked == [{"kind": "rule", "op": "op", "rule": "fast", "stored": "float32", "variant": ""}]
    assert capsys.readouterr().err.count("\n") == 1
    nobody = Prover()  # has no answer left
    reason, again = prove(nobody)
    assert reason is None and nobody.asked == [] and again.summary() == {"proved": ["op 'fast'"]}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("answer", "words", "case"), [
    (WRONG, "output 0, 3 of what is allowed", "layer_norm 9 x 64"), (HUNG, "hung: no answer in 20 s", "layer_norm 5 x 33"),
    ({**WRONG, "reason": "KernelError: no\na whole log", "ended": True}, "a whole log", "layer_norm 9 x 64")])
def test_a_rule_that_is_wrong_is_set_aside_and_stays_so(answer, words, case, prove, numpy_backend, capsys):
    for _ in range(2):
        reason, made = prove(Prover(answer, answer))  # one that hangs is asked once more
        assert "set aside on this device" in reason and words in reason and made.summary() == {"set aside": ["op 'fast'"]}
    stderr = capsys.readouterr().err
    assert stderr.count("is set aside on") == 1 and case in stderr and "duoln doctor" in stderr
    [kept] = _kept(numpy_backend)
    assert (kept.state, kept.case) == ("set aside", case) and words in kept.reason


def test_dtypes_and_variants_are_proved_apart(prove, numpy_backend):
    prover = Prover(None, WRONG, None)
    assert prove(prover)[0] is None
    assert prove(prover, arrays=[numpy_backend.asarray(np.ones(2), "float16")])[0] is not None
    assert prove(prover, attrs={"norm": "layer"})[0] is None
    assert [(r["stored"], r["variant"]) for r in prover.asked] == [("float32", ""), ("float16", ""), ("float32", "layer")]
    assert [v.name for v in _kept(numpy_backend)] == ["op 'fast'", "op 'fast' of float16", "op layer 'fast'"]


@pytest.mark.parametrize("prover", [
    Prover(start=WorkerLostError("its process ended with exit code 1:\nno memory left", "to start")), Prover(NO_MEMORY),
    Prover(WorkerLostError("its process ended with signal SIGKILL", "a case", from_outside=True))], ids=["start", "memory", "killed"])
def test_what_cannot_be_proved_is_trusted_and_not_kept(prover, prove, numpy_backend):
    reason, made = prove(prover)
    assert reason is None and made.summary() == {"trusted": ["op 'fast'"]}
    assert _kept(numpy_backend) == []


def test_a_rule_without_a_case_is_trusted_and_nobody_asks_again(prove):
    no_case = {"case": "", "reason": proofs.NO_CASE, "ended": False}
    for prover in (Prover(no_case), Prover()):
        reason, made = prove(prover)
        assert reason is None and made.summary() == {"trusted": ["op 'fast'"]}


def test_one_that_hung_on_a_busy_machine_has_a_second_chance(prove):
    prover = Prover(HUNG, None)
    reason, made = prove(prover)
    assert reason is None and made.summary() == {"proved": ["op 'fast'"]}
    assert len(prover.asked) == 2 and prover.ended >= 1


def test_an_interrupt_ends_the_process_whose_answer_comes_later(prove, numpy_backend):
    prover = Prover(KeyboardInterrupt(), WRONG)
    with pytest.raises(KeyboardInterrupt):
        prove(prover)
    assert prover.ended == 1 and _kept(numpy_backend) == []
    assert prove(prover)[0] is not None


@pytest.mark.long
def test_verdicts_of_several_processes_at_once_are_all_kept(numpy_backend, tmp_path, monkeypatch):
    monkeypatch.setenv("DUOLN_CACHE", str(tmp_path))
    code = """
import sys
from duoln import runtime
from duoln.kernels.proofs import Proofs
for k in range(10):
    Proofs(runtime.backend("numpy")).learn([{"op": f"{sys.argv[1]} {k}", "rule": "r", "stored": "float32", "variant": "", "state": "proved"}])
"""
    running = [subprocess.Popen([sys.executable, "-c", code, name], cwd=ROOT) for name in "abc"]
    assert [process.wait(PATIENCE) for process in running] == [0, 0, 0]
    assert len(_kept(numpy_backend)) == 30


def test_a_process_that_does_not_start_is_started_once(numpy_backend, tmp_path, monkeypatch):
    monkeypatch.setenv("DUOLN_CACHE", str(tmp_path))
    monkeypatch.delenv("DUOLN_PROVE")
    started = []
    made = proofs.Proofs(numpy_backend, lambda: started.append(1) or Prover(start=WorkerLostError("exit code 1", "to start")))
    assert [made.refusal(op, Rule("fast", lambda: None), [], {}) for op in ("one", "two", "three")] == [None] * 3
    assert started == [1] and made.summary() == {"trusted": ["one 'fast'", "two 'fast'", "three 'fast'"]}


def test_the_user_decides(prove, monkeypatch, numpy_backend):
    prove(Prover(WRONG))
    monkeypatch.setenv("DUOLN_PROVE", "0")
    reason, made = prove(Prover())
    assert reason is None and made.summary() == {"trusted": ["op 'fast'"]}
    monkeypatch.setenv("DUOLN_PROVE", "again")
    assert prove(Prover(None))[0] is None
    assert [v.state for v in _kept(numpy_backend)] == ["proved"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"verdicts": [{"op": 1}]}', "\xff"])
def test_a_file_that_cannot_be_read_is_made_anew(content, prove, numpy_backend):
    prove(Prover(None))
    [file] = proofs._folder().glob("*.json")
    file.write_text(content)
    prover = Prover(None)
    assert prove(prover)[0] is None and prover.asked
    assert len(_kept(numpy_backend)) == 1


def test_verdicts_are_for_a_device_and_texts(prove, numpy_backend, monkeypatch):
    prove(Prover(WRONG))
    monkeypatch.setattr(proofs, "_fingerprint", lambda *files: "others")
    assert prove(Prover(None))[0] is None
    monkeypatch.setattr(type(numpy_backend), "info", lambda self: {"device": "another"})
    assert prove(Prover(None))[0] is None
    assert len(list(proofs._folder().glob("*.json"))) == 3


def test_a_folder_that_cannot_be_written_costs_the_next_proof(prove, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DUOLN_CACHE", str(tmp_path / "file"))
    assert prove(Prover(None))[0] is None
    assert "cannot be kept" in capsys.readouterr().err


# A first run on a device where kernels are wrong -------------------------------------------------------------------

FIRST_RUN = f"""
import sys
sys.path.append({str(ROOT / 'tests' / 'tools')!r})
import stand_in_cupy
sys.modules["cupy"] = stand_in_cupy.make()
"""
TRAINING = """
import json
import duoln
from duoln.kernels import proofs
proofs._START_SECONDS, proofs._CASE_SECONDS = 600, (10, 1)
run = duoln.tasks.train("mnist", "ln", preset="smoke", backend="cupy", epochs=1)
from duoln import doctor
print(json.dumps([run.losses["loss"].tolist(), duoln.backend("cupy").proofs.summary(), doctor.examine(with_ops=True)]))
"""


@pytest.fixture(scope="module")
def compiled(gpu):
    """The kernels of the cases that prove MNIST's rules, so that no limit is for a compiler."""
    from duoln.testing import selftest

    used = ("layer_norm", "linear", "softmax_cross_entropy", "adam_update", "adam_rates", "global_norm")
    for case in selftest.every_device_case():
        if case.net and case.op in used and case.stored == "float32":
            assert all(o.passed for o in selftest.run(gpu, [case], 1))


def _process(tmp_path, program, faults, begin="", **variables):
    """What a program printed as JSON, over the stand-in for CuPy with faults, and its stderr."""
    (tmp_path / "sitecustomize.py").write_text(FIRST_RUN + begin)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "STAND_IN_FAULTS": faults,
                   "DUOLN_CACHE": str(tmp_path / "cache"), **variables}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path,
                          env={k: v for k, v in environment.items() if v}, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return (*json.loads(done.stdout), done.stderr)


BROKEN_ON_CPU = pytest.mark.skipif(GPU != STAND_IN or sys.platform != "linux", reason="kernels are broken on the CPU only")


@pytest.mark.long
@BROKEN_ON_CPU
def test_a_first_run_over_a_wrong_a_hanging_and_a_context_ending_kernel(tmp_path, compiled):
    right, _, _, _ = _process(tmp_path, TRAINING, "", DUOLN_RULES="composed")
    faults = "wrong=layer_norm_backward hang=cross_entropy_backward end=adam_update"
    losses, rules, facts, stderr = _process(tmp_path, TRAINING, faults, DUOLN_PROVE="")
    np.testing.assert_allclose(losses, right, rtol=1e-4)
    assert rules["set aside"] == ["layer_norm 'cuda row'", "softmax_cross_entropy 'cuda row'", "adam_update 'cuda one pass'"]
    assert "linear 'cuda bias'" in rules["proved"] and "adam_rates 'cuda'" in rules["proved"]
    reasons = {v["op"]: v["reason"] for v in facts["proofs"]["cupy"] if v["state"] == "set aside"}
    assert "of what is allowed" in reasons["layer_norm"] and "hung" in reasons["softmax_cross_entropy"]
    assert "cudaErrorIllegalAddress" in reasons["adam_update"]
    assert stderr.count("set aside") == 3 and stderr.count("proving the kernels") == 1
    again, _, _, later = _process(tmp_path, TRAINING, "", DUOLN_PROVE="")  # what was set aside stays so
    np.testing.assert_array_equal(again, losses)
    assert "set aside" not in later and "proving" not in later


@pytest.mark.long
@pytest.mark.skipif(GPU != STAND_IN or sys.platform != "linux", reason="the pool is the stand-in's")
def test_a_device_without_memory_left_says_nothing_about_a_kernel(gpu, monkeypatch):
    from duoln.kernels.launch import cuda as launch
    from duoln.testing import prover

    def empty(*shape, **kwargs):
        raise MemoryError("Out of memory allocating 512 bytes")

    request = {"op": "layer_norm", "rule": "cuda row", "stored": "float32", "variant": ""}
    assert prover._rule(gpu, request, lambda what: None) is None
    monkeypatch.setattr(launch.cupy, "empty", empty)
    refused = prover._rule(gpu, request, lambda what: None)
    assert refused["case"] == "" and "Out of memory" in refused["reason"]
    monkeypatch.setattr(type(gpu), "asarray", empty)  # before the kernel, too
    refused = prover._rule(gpu, request, lambda what: None)
    assert refused["case"] == "" and "Out of memory" in refused["reason"]


def test_only_gpus_have_their_rules_proved(be):
    assert (be.proofs is not None) == (be.name == "cupy" or getattr(be, "on_gpu", False))
