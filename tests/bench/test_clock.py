"""The clock over a simulated one, which advances only when simulated work is done. Nothing here takes time."""

import numpy as np
import pytest

from duoln.bench import clock
from duoln.bench.clock import Timer, Work, agreement_norms


class _Simulated:
    """Each call takes `each` seconds, each wait `once`."""

    def __init__(self, each, once=0.0, **more):
        self.each, self.once, self.time, self.calls, self.waited = each, once, 0.0, [], []
        self.work = Work(self.call, [], {}, self.wait, **more)

    def now(self):
        return self.time

    def call(self, k):
        self.calls.append(k)
        self.time += self.each
        return [k]

    def wait(self, results):
        self.waited.append(list(results))
        self.time += self.once


@pytest.mark.parametrize("each", [1e-4, 1e-3, 0.3])
def test_a_run_lasts_long_enough_and_not_much_longer(each):
    simulated = _Simulated(each, first=5)
    timer = Timer(simulated.work, simulated.now)
    assert clock.RUN_SECONDS <= timer.calls * each <= max(clock.RUN_SECONDS * 2, each)
    assert simulated.calls == list(range(5, 5 + timer.warmups)) and timer.run() == pytest.approx(each)


def test_a_wait_is_little_of_a_run():
    simulated = _Simulated(1e-5, once=1e-5)
    assert Timer(simulated.work, simulated.now).run() == pytest.approx(1e-5, rel=0.01)


@pytest.mark.parametrize(("each", "most", "calls"), [(0.0, clock.MOST_CALLS, clock.MOST_CALLS), (1e-9, 10, 10), (1e-9, 1, 1)])
def test_the_calls_of_a_run_are_bounded(each, most, calls):
    simulated = _Simulated(each, most=most)
    assert Timer(simulated.work, simulated.now).calls == calls


@pytest.mark.parametrize(("keeps", "kept"), [(1, 1), (3, 3), (None, 25)])
def test_a_lazy_library_waits_for_every_call_and_another_keeps_some_results(keeps, kept):
    simulated = _Simulated(1e-3, keeps=keeps)
    timer = Timer(simulated.work, simulated.now)
    timer.run()
    assert simulated.waited[-1] == simulated.calls[-kept if keeps else -timer.calls:]


def test_parts_of_a_call_share_its_seconds():
    simulated = _Simulated(0.5, parts=10)
    assert Timer(simulated.work, simulated.now).run() == pytest.approx(0.05)


def test_the_devices_own_time_is_that_of_a_graph_of_a_runs_calls():
    simulated = _Simulated(1e-3)

    def capture(run):
        before = len(simulated.calls)
        run()
        return lambda: 0.25e-3 * (len(simulated.calls) - before)

    timer = Timer(simulated.work._replace(capture=capture), simulated.now)
    assert timer.device_seconds() == pytest.approx(0.25e-3) and timer.no_graph is None
    assert Timer(simulated.work, simulated.now).device_seconds is None


def test_calls_that_cannot_be_captured_have_a_reason_and_the_hosts_time():
    def refuse(run):
        raise RuntimeError("operation not permitted when stream is capturing")

    simulated = _Simulated(1e-3)
    timer = Timer(simulated.work._replace(capture=refuse), simulated.now)
    assert timer.run() == pytest.approx(1e-3) and timer.device_seconds is None
    assert clock.events([], timer.no_graph) == {"no_event_seconds": "RuntimeError: operation not permitted when stream is capturing"}


def test_no_result_lives_while_a_graph_is_captured(monkeypatch):
    """PyTorch's gradients would be given on the stream of the first use of their tensors."""
    simulated, alive, timers = _Simulated(1e-3), [], []
    chosen = Timer._chosen
    monkeypatch.setattr(Timer, "_chosen", lambda timer: (timers.append(timer), chosen(timer))[1])
    timer = Timer(simulated.work._replace(capture=lambda run: (alive.append(len(timers[0]._kept)), run())[1]), simulated.now)
    assert alive == [0] and not timer._kept


@pytest.mark.parametrize(("each", "runs"), [(2.0, 0), (0.5, 3)])
def test_long_runs_need_none_before_them(each, runs):
    simulated = _Simulated(each)
    timer = Timer(simulated.work, simulated.now)
    before = len(simulated.calls)
    timer.warm(1.5, 1.0)
    assert len(simulated.calls) == before + runs


def test_events():
    assert clock.events([0.25, 0.5, 0.25], None) == {"event_seconds": 0.25, "event_samples": [0.25, 0.5, 0.25]}
    assert clock.events([], None) == {}


def test_figures_know_order_and_sign(monkeypatch):
    x = np.array([1.0, -2.0, 3.0])
    made = agreement_norms([x])
    assert made[0] == pytest.approx(np.sqrt(14)) and agreement_norms([x[::-1]])[2] != made[2] and agreement_norms([-x])[1] != made[1]
    monkeypatch.setattr(clock, "_CHECKED_VALUES", 1)
    assert agreement_norms([x])[0] == 1.0  # every third value
