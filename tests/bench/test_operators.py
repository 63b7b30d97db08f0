"""The benchmark of operators: its checks before timing, its rotation of buffers, its counts. No test depends on a
time.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from duoln import ops, runtime
from duoln.backends.numpy import NumpyBackend
from duoln.bench import agreement, clock, launch_chains, operators, operators_torch, subjects
from duoln.bench.launch_chains import DuolnChain, Rotation, cache_for
from duoln.bench.operators import Plan
from duoln.bench.records import source_hash
from duoln.bench.schema import check_record
from duoln.bench.subjects import COPY, buffer_count, buffers, every_subject
from duoln.cli import main
from duoln.cli.bench import operators as bench_command
from duoln.core import Rule, composed_only
from duoln.errors import DuolnError, UsageError
from duoln.examples import own_operator
from duoln.kernels import native
from duoln.kernels.device_limits import memory
from duoln.kernels.registry import timed
from duoln.testing import check_error

LAYER_NORM, CROSS_ENTROPY = every_subject()["layer_norm"], every_subject()["softmax_cross_entropy"]
BESIDE = [every_subject()[name] for name in ("rms_norm", "add_layer_norm", "add_rms_norm")]
PLANS = [Plan(s, (5, 7), "warm", b) for s in (LAYER_NORM, CROSS_ENTROPY, *BESIDE) for b in (False, True)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(clock, "SAMPLE_SECONDS", 5e-4)
    monkeypatch.setattr(subjects, "CACHE_BYTES", 1 << 18)


def test_an_operator_outside_kernels_has_the_source_of_its_own_folder():
    subject, folder = subjects._subject(own_operator.l2_rows, timed()["l2_rows"]), Path(own_operator.__file__).parent
    assert subject.source("compiled") == source_hash(folder.parent, [folder.name])


@pytest.mark.parametrize("plan", PLANS, ids=lambda p: p.name)
def test_a_case_on_every_backend(be, plan):
    [case] = operators.measure(plan, be, (), 2, copy_gbps=10.0)
    assert case["op"] == plan.subject.name and case["pass"] == operators.passes(plan.backward)
    assert case["rule"] == plan.subject.op.rules(be.name)[0].name or case["rule"] == "composed"
    assert (case["source"] is None) == (case["rule"] == "composed")
    assert 0 <= case["max_error"] < 1e-5 and len(case["samples"]) == 2
    assert case["clock"] == "wall_slope" and case["cache"] == "warm" and case["launches"] < 1000


def test_the_composed_rule_is_timed_where_it_alone_is_allowed(numpy_backend):
    with composed_only():
        [case] = operators.measure(PLANS[1], numpy_backend, (), 1, copy_gbps=10.0)
    assert case["rule"] == "composed" and case["source"] is None


@pytest.mark.parametrize(("spoil", "backward", "words"), [
    ("value", False, ["the value", "the composed rule"]), ("gradient", True, ["gradient of bias"])])
def test_a_wrong_rule_is_not_timed(numpy_backend, monkeypatch, spoil, backward, words):
    right = ops.layer_norm.rules("numpy")[0]

    def forward(be, *arrays, **attrs):
        y, saved = right.forward(be, *arrays, **attrs)
        return (y * 1.01 if spoil == "value" else y), saved

    def vjp(be, saved, gout, needs):
        *gradients, bias = right.vjp(be, saved, gout, needs)
        return (*gradients, bias * 1.01 if spoil == "gradient" else bias)

    monkeypatch.setitem(ops.layer_norm._rules, "numpy", [Rule("wrong", forward, vjp)])
    plan = Plan(LAYER_NORM, (5, 7), "warm", backward)
    check_error(DuolnError, lambda: operators.measure(plan, numpy_backend, (), 1, 10.0), "rule 'wrong'", *words)


def test_the_error_is_that_of_all_rows_and_all_arrays(numpy_backend, monkeypatch):
    monkeypatch.setattr(agreement, "_CHUNK_VALUES", 14)  # two rows at a time
    inputs = LAYER_NORM.inputs((5, 7))
    arrays = agreement.compute(LAYER_NORM, numpy_backend, inputs, True)
    assert agreement.max_error(LAYER_NORM, numpy_backend, inputs, arrays, True) < 1e-6
    for name, place in (("value", (4, 6)), ("x", (0, 0)), ("gain", 3), ("bias", 0)):
        spoilt = {**arrays, name: arrays[name].copy()}
        spoilt[name][place] += 0.5
        error = agreement.max_error(LAYER_NORM, numpy_backend, inputs, spoilt, True)
        assert error == pytest.approx(0.5 / np.max(np.abs(arrays[name])), rel=1e-3)
        spoilt[name][place] = np.nan
        assert agreement.max_error(LAYER_NORM, numpy_backend, inputs, spoilt, True) == np.inf


@pytest.mark.parametrize("subject", [LAYER_NORM, CROSS_ENTROPY, *BESIDE], ids=lambda s: s.name)
def test_a_device_computes_the_float64_that_numpy_computes(gpu, subject):
    inputs = subject.inputs((5, 7))
    [(place, exact)], [(of_all, expected)] = (list(agreement._exact(subject, backend, inputs, True))
                                              for backend in (gpu, runtime.backend("numpy")))
    assert place == of_all == slice(0, 5) and exact.keys() == expected.keys()
    for name, values in exact.items():
        assert values.dtype == np.float64
        np.testing.assert_allclose(values, expected[name], rtol=1e-12, atol=1e-12)


def test_the_yardstick_of_a_cpu_writes_past_the_caches(be, monkeypatch):
    """Whichever library computes; without a compiler it is NumPy's copy, and the line says why it is no limit."""
    monkeypatch.setattr(operators, "COPY", COPY._replace(timed=COPY.timed._replace(shapes=((16, 8),))))
    copy = operators.Yardstick(be)
    assert copy.gbps(1) > 0 and copy.gbps(2) > 0
    case = copy.case()
    assert len(case["samples"]) == 3 and case["fraction_of_copy"] == pytest.approx(1.0)
    words = operators.copy_words(20.0, case["rule"], be)
    if not operators.on_cpu(be):
        assert (case["rule"], words) == ("the library's", "a copy, 20.0 GB/s")
    elif native.machine_refusal() is None:
        assert (case["rule"], words) == ("streaming", "a streaming copy, 20.0 GB/s")
    monkeypatch.setattr(memory, "refusal", lambda: "DUOLN_NATIVE=0 is set")
    if operators.on_cpu(be):
        assert operators.Yardstick(be).rule == "the library's"
        assert operators.copy_words(20.0, "the library's", be).endswith("because DUOLN_NATIVE=0 is set)")


def test_what_a_cache_holds_has_no_share_of_a_copy(numpy_backend):
    [warm], [cold] = (operators.measure(Plan(LAYER_NORM, (128, 256), cache, False), numpy_backend, (), 1, 10.0)
                      for cache in ("warm", "cold"))
    assert warm["fraction_of_copy"] is None and cold["fraction_of_copy"] == pytest.approx(cold["gbps"] / 10.0)


@pytest.mark.parametrize(("seconds", "words"), [(12.0, "about 6 s left"), (400.0, "about 3 minutes left")])
def test_the_cases_so_far_estimate_the_rest(seconds, words):
    assert bench_command._remaining(0, 3, 0.0) == "" and bench_command._remaining(2, 3, seconds) == f", {words}"


@pytest.mark.long
@pytest.mark.parametrize(("asked", "small"), [((), True), (("--small",), True), (("--full",), False)])
def test_a_cpu_takes_the_small_tables_by_itself(asked, small, monkeypatch, capsys):
    """And says beside each case how long the rest will take."""
    timed = []

    def measure(plan, *others):
        timed.append(plan)
        return []

    monkeypatch.setattr(operators, "COPY", COPY._replace(timed=COPY.timed._replace(shapes=((16, 8),))))
    monkeypatch.setattr(operators, "measure", measure)
    monkeypatch.setattr(bench_command, "_remaining", lambda done, planned, seconds: f", after {done}")
    assert main(["bench", "ops", "--backend", "numpy", "--rounds", "1", "--op", "rms_norm", *asked]) == 0
    rms_norm = every_subject()["rms_norm"].timed
    assert [plan.shape for plan in timed[::2]] == list(rms_norm.small if small else rms_norm.shapes)
    lines = capsys.readouterr().err.splitlines()
    counted = [line.partition(f" of {len(timed)}")[2] for line in lines if line.startswith("rms_norm ")]
    assert counted == [f", after {done})" for done in range(len(timed))]


def test_the_copy_is_one(be):
    x = np.arange(15, dtype=np.float32).reshape(5, 3)
    arrays = agreement.compute(COPY, be, {"x": x, "gout": x}, False)
    assert np.array_equal(arrays["value"], x)


@pytest.mark.skipif(native.machine_refusal() is not None, reason="nothing is compiled")
@pytest.mark.parametrize("size", [1, 1000, (8 << 18) + 5])
def test_a_streaming_copy_has_every_value(size):
    """The last size is written with streaming stores."""
    x = np.arange(size, dtype=np.float32)
    assert np.array_equal(memory.copy(x), x)


def test_cold_inputs_and_results_rotate_and_go_on(numpy_backend):
    shape = (256, 64)
    assert cache_for(shape, cold=True) == "cold" and cache_for((8, 16), cold=True) == "warm"
    count = buffer_count(shape, cold=True)
    assert (count - 1) * 4 * 256 * 64 > 2 * subjects.CACHE_BYTES
    chain = DuolnChain(LAYER_NORM, numpy_backend, LAYER_NORM.inputs(shape), "cold", True)
    seen = []
    real = LAYER_NORM.run
    chain._subject = type("Spy", (), {"run": lambda self, tensors, gout: (
        seen.append((tensors["x"].data.ctypes.data, gout.ctypes.data)), real(tensors, gout))[1]})()
    chain.launch(count - 1)
    chain.launch(3)
    starts = [x for x, _ in seen]
    assert len(set(starts)) == count and starts[count:] == starts[:2]
    assert all(x != gout for x, gout in seen)
    results = [r["x"].ctypes.data for r in chain._results]
    assert len(results) == count == len(set(results))


def test_rotation():
    cold, warm = Rotation(3, cold=True), Rotation(2, cold=False)
    assert [cold.next() for _ in range(4)] == [(0, 1), (1, 2), (2, 0), (0, 1)]
    assert [warm.next() for _ in range(3)] == [(0, 1)] * 3


@pytest.mark.parametrize("shape", [(3, 5), (4, 64), (100, 96)])
def test_buffers_start_aligned(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    whole, places = buffers(x, 3)
    assert len(places) == 3
    for place in places:
        assert np.array_equal(whole[place], x)
        assert (whole[place].ctypes.data - whole.ctypes.data) % 256 == 0


def test_launches_of_a_lazy_library_form_a_chain_and_all_results_are_computed(numpy_backend, monkeypatch):
    monkeypatch.setattr(launch_chains, "LAZY", ("numpy",))
    inputs = LAYER_NORM.inputs((4, 64))
    chain = DuolnChain(LAYER_NORM, numpy_backend, inputs, "warm", False)
    chain.launch(3)
    first, second, third = (r["value"] for r in chain._results)
    assert np.allclose(second - first, first[0] - inputs["bias"], atol=1e-5)
    assert np.allclose(third - second, second[0] - first[0], atol=1e-5)
    chain.wait()
    assert not chain._results and chain.most == launch_chains.RESULT_BYTES // (4 * 4 * 64)


def test_a_backend_may_time_its_device():
    class Timed(NumpyBackend):
        def device_seconds(self, run):
            run()
            return lambda: 3.0

    [case] = operators.measure(PLANS[0], Timed(), (), 2, copy_gbps=10.0)
    assert case["event_samples"] == [case["event_seconds"]] * 2 == [3.0 / case["launches"]] * 2


def test_plans():
    plans = operators.make_plans([COPY, LAYER_NORM], [(8, 16), (64, 256), (8, 16)], False, ["cold", "warm"], True)
    assert [(p.shape, p.cache) for p in plans] == [((8, 16), "warm"), ((64, 256), "cold"), ((64, 256), "warm")]
    both = operators.make_plans(list(every_subject().values()), None, True, ["cold"], False)
    timed = [subject for name, subject in every_subject().items() if name != "copy"]
    assert len(both) == 2 * sum(len(subject.timed.small) for subject in timed)
    for subject in timed:
        assert len(set(subject.timed.shapes)) == len(subject.timed.shapes) > len(subject.timed.small)


def test_least_bytes():
    assert LAYER_NORM.timed.bytes_moved(3, 5, False) == 2 * 60 and LAYER_NORM.timed.bytes_moved(3, 5, True) == 4 * 60
    assert CROSS_ENTROPY.timed.bytes_moved(3, 5, False) == 60 + 24 and CROSS_ENTROPY.timed.bytes_moved(3, 5, True) == 2 * 60 + 36
    assert COPY.timed.bytes_moved(3, 5, False) == 2 * 60
    assert [s.timed.bytes_moved(3, 5, False) for s in BESIDE] == [2 * 60, 4 * 60, 4 * 60]
    assert [s.timed.bytes_moved(3, 5, True) for s in BESIDE] == [4 * 60, 6 * 60, 6 * 60]
    assert [s.timed.operations(3, 5, True) for s in BESIDE] == [12 * 15, 20 * 15, 14 * 15]
    assert LAYER_NORM.timed.operations(3, 5, True) > LAYER_NORM.timed.operations(3, 5, False) > 0


@pytest.mark.peers
@pytest.mark.parametrize("plan", PLANS, ids=lambda p: p.name)
def test_the_peer_agrees_where_it_is_installed(numpy_backend, plan):
    cases = operators.measure(plan, numpy_backend, ["torch"], 1, copy_gbps=10.0)
    assert [case["side"] for case in cases] == ["duoln", "torch"] and cases[1]["max_error"] < 1e-5
    assert cases[1]["rule"] is None and "torch" in cases[1]["facts"]["library"]


@pytest.mark.peers
def test_a_peer_that_computes_something_else_is_not_timed(numpy_backend, monkeypatch):
    real = operators_torch.compute
    monkeypatch.setattr(operators_torch, "compute",
                        lambda *args: {name: 1.1 * a for name, a in real(*args).items()})
    check_error(DuolnError, lambda: operators.measure(PLANS[0], numpy_backend, ["torch"], 1, 10.0), "torch", "off duoln")


def test_sides_differ_relative_to_what_was_expected():
    agree = partial(agreement.check_agreement, "a copy", {"value": np.array([2.0])}, {"value": np.array([1.0])}, "duoln")
    check_error(DuolnError, lambda: agree(0.9), "a copy: the value is 1 of its largest off duoln (allowed 0.9)")
    agree(1.0)


def test_a_peer_that_there_is_not(numpy_backend):
    check_error(UsageError, lambda: operators.measure(PLANS[0], numpy_backend, ["jax"], 1, 10.0), "torch", "'jax'")


def test_cases_make_a_valid_record(numpy_backend):
    from bench import made

    cases = operators.measure(PLANS[3], numpy_backend, (), 1, copy_gbps=10.0)
    check_record({**made.record(), "cases": cases}, "f")
