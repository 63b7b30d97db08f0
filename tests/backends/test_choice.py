"""The choice of a backend, the reasons against the others, and the messages to the user."""

import json
import subprocess
import sys

import pytest

from duoln import backends, doctor, runtime
from duoln.errors import BackendError, UsageError
from duoln.testing import check_error


class _FakeGpu:
    def __init__(self, name):
        self.name, self.device, self.on_gpu = name, f"a {name} device", True


def _probes(monkeypatch, **usable):
    """Make some backends usable and break the rest."""
    def load(name):
        if name in usable:
            return usable[name]
        raise ImportError(f"no {name} here")

    monkeypatch.setattr(backends, "load", load)
    monkeypatch.setattr(runtime, "_attach", lambda backend: None)


def test_auto_takes_cupy_first(monkeypatch):
    _probes(monkeypatch, cupy=_FakeGpu("cupy"), mlx=_FakeGpu("mlx"), numpy=_FakeGpu("numpy"))
    backend, line = runtime.choose()
    assert (backend.name, line) == ("cupy", f"cupy, {backend.device}") and "ran a kernel" in runtime.choice_in_full()


def test_auto_takes_mlx_with_a_gpu_next(monkeypatch):
    _probes(monkeypatch, mlx=_FakeGpu("mlx"), numpy=_FakeGpu("numpy"))
    assert runtime.choose("auto")[0].name == "mlx"


def test_auto_never_takes_mlx_on_a_cpu(monkeypatch):
    slow = _FakeGpu("mlx")
    slow.on_gpu = False
    _probes(monkeypatch, mlx=slow, numpy=_FakeGpu("numpy"))
    backend, line = runtime.choose()
    why = runtime.choice_in_full()
    assert backend.name == "numpy" and line.startswith("numpy, ") and "Error" not in line
    assert "no cupy (ImportError: no cupy here)" in why and "no Metal GPU" in why


def test_a_library_that_ends_the_program_is_no_choice(monkeypatch):
    def load(name):
        raise SystemExit(f"no {name}")

    monkeypatch.setattr(backends, "load", load)
    check_error(BackendError, runtime.choose, "numpy (no cupy (SystemExit: no cupy)", "pip install numpy")


def test_the_environment_chooses_before_auto(monkeypatch):
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    assert "set by DUOLN_BACKEND; rules " in runtime.choice_in_full()


@pytest.mark.parametrize(("version", "short"), [
    ("c++ (Debian 12.2.0-14+deb12u1) 12.2.0", "c++ 12"), ("g++ (GCC) 14.2.1 20250110 (Red Hat 14.2.1-7)", "g++ 14"),
    ("Debian clang version 14.0.6", "Debian clang 14"), ("Apple clang version 15.0.0 (clang-1500.3.9.4)", "Apple clang 15"),
    ("clang version 18.1.3 (https://github.com/x 5)", "clang 18"), ("x86_64-conda-linux-gnu-c++ (conda-forge gcc 13.3.0-1) 13.3.0", "x86_64-conda-linux-gnu-c++ 13"),
    ("a compiler of its own", "a compiler of its own")])
def test_a_compiler_in_short(version, short, monkeypatch):
    facts = {"rules": "compiled", "compiler": version, "vector_bits": "512", "absent": {}}
    monkeypatch.setattr(runtime.native, "facts", lambda: facts)
    monkeypatch.setattr(runtime.platform, "machine", lambda: "x86_64")
    assert runtime.choose("numpy")[1] == f"numpy, compiled by {short}, AVX-512"
    monkeypatch.setattr(runtime.platform, "machine", lambda: "arm64")
    facts |= {"vector_bits": "128", "absent": {"softmax": "it does not compile"}}
    assert runtime.choose("numpy")[1] == f"numpy, compiled by {short}, vectors of 128 bits, 1 of the rules interpreted: duoln doctor says why"


def test_an_argument_chooses_before_the_environment(monkeypatch):
    monkeypatch.setenv("DUOLN_BACKEND", "no such thing")
    assert runtime.choose("numpy")[0].name == "numpy"
    check_error(UsageError, runtime.choose, "no such thing", "numpy, cupy, mlx")


def test_a_backend_asked_for_and_not_usable_says_why(monkeypatch):
    _probes(monkeypatch, numpy=_FakeGpu("numpy"))
    check_error(BackendError, lambda: runtime.backend("cupy"), "no cupy here", "pip install", "cupy-cuda12x")


def test_a_probe_survives_any_exception(monkeypatch):
    def load(name):
        raise RuntimeError("")

    monkeypatch.setattr(backends, "load", load)
    assert runtime.probe("mlx").reason == "RuntimeError: no message"


def test_unknown_backend_lists_those_there_are():
    check_error(UsageError, lambda: runtime.backend("tpu"), "tpu", "auto", "numpy")


@pytest.mark.parametrize("name", ["numpy", "cupy", "mlx"])
def test_doctor_has_a_remedy_for_what_is_refused(name):
    probed = {b["name"]: b for b in doctor.examine()["backends"]}[name]
    assert probed["usable"] or (probed["reason"] and "pip install" in probed["remedy"])


def test_doctor_says_which_rules_take_16_bits(gpu, monkeypatch):
    probe = runtime.probe
    monkeypatch.setattr(runtime, "probe", lambda name: probe(name)._replace(backend=gpu, reason="") if name == "cupy" else probe(name))
    rules = doctor.examine(with_ops=True, asked=[])["ops"]
    for op in ("layer_norm", "softmax_cross_entropy", "take", "lstm", "lstm_cell", "gru", "rnn"):
        first = next(rule for rule in rules[op]["cupy"].split(" > ") if rule != "cuda walk")
        assert first.endswith(" (16 bits)")
    assert "16 bits" not in rules["lstm"]["numpy"]
    assert rules["linear"] == {**rules["linear"], "cupy": "cuda bias > composed (16 bits)"}


def test_tf32_is_off_unless_asked_for():
    code = "import duoln, os, json; print(json.dumps([os.environ['MLX_ENABLE_TF32'], os.environ['CUPY_TF32']]))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == ["0", "0"]
