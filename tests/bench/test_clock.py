"""The slope clock over a simulated clock, which advances only when a simulated chain works. Nothing here takes time."""

import pytest

from duoln.bench import clock
from duoln.bench.clock import SlopeClock, choose_launches, deviation, take_turns
from duoln.errors import DuolnError
from duoln.testing import check_error


class _Chain:
    """Each launch takes `each` seconds, each wait `once`; `stalls` are the seconds of other work in each run."""

    def __init__(self, each, once=0.0, most=10**6, stalls=()):
        self.each, self.once, self.most, self.stalls = each, once, most, list(stalls)
        self.warmups, self.seconds_of_graph = 3, None
        self.time, self.launches = 0.0, []

    def now(self):
        return self.time

    def launch(self, count):
        self.launches.append(count)
        self.time += self.each * count

    def wait(self):
        self.time += self.once + (self.stalls.pop(0) if self.stalls else 0.0)

    def capture(self, count):
        return self.seconds_of_graph and (lambda: self.seconds_of_graph(count))


def test_what_a_run_costs_once_drops_out():
    chain = _Chain(each=1e-3, once=5e-3)
    one = SlopeClock(chain, chain.now)
    take_turns([one], 4)
    assert one.samples.seconds == pytest.approx([1e-3] * 4) and one.samples.device_seconds is None
    k = one.samples.launches
    assert chain.launches[-2:] == [k, 2 * k]


@pytest.mark.parametrize("each", [1e-4, 1e-3, 0.3])
def test_a_run_lasts_long_enough_and_not_much_longer(each):
    chain = _Chain(each)
    k, made = choose_launches(chain, chain.now)
    assert clock.SAMPLE_SECONDS <= k * each <= max(clock.SAMPLE_SECONDS * 2, each)
    assert made == chain.warmups + sum(chain.launches[1:])


@pytest.mark.parametrize(("each", "most", "k"), [(0.0, 10**6, clock.MOST_LAUNCHES), (1e-9, 10, 5), (1e-9, 1, 1)])
def test_k_is_bounded(each, most, k):
    chain = _Chain(each, most=most)
    assert choose_launches(chain, chain.now)[0] == k < 1000


def test_a_sample_that_other_work_turned_round_is_taken_again_and_counted():
    chain = _Chain(each=1e-3)
    one = SlopeClock(chain, chain.now)
    chain.stalls = [0.0, 1.0]  # after the run that settles, k launches take a second more
    one.take()
    assert one.samples.seconds == pytest.approx([1e-3]) and one.samples.repeated == 1


def test_a_clock_that_never_moves_is_an_error():
    chain = _Chain(each=0.0)
    check_error(DuolnError, SlopeClock(chain, chain.now).take, "launches took no longer than", "too busy")


def test_the_devices_own_time_is_that_of_a_graph_of_as_many_launches():
    chain = _Chain(each=1e-3, once=5e-3)
    chain.seconds_of_graph = lambda count: 0.25e-3 * count
    one = SlopeClock(chain, chain.now)
    take_turns([one], 2)
    assert one.samples.seconds == pytest.approx([1e-3] * 2) and one.samples.device_seconds == pytest.approx([0.25e-3] * 2)
    assert one.samples.no_graph is None


def test_launches_that_cannot_be_captured_have_a_reason_and_the_hosts_time():
    class Refusing(_Chain):
        def capture(self, count):
            raise RuntimeError("operation not permitted when stream is capturing")

    chain = Refusing(each=1e-3)
    one = SlopeClock(chain, chain.now)
    one.take()
    assert one.samples.seconds == pytest.approx([1e-3]) and one.samples.device_seconds is None
    assert one.samples.no_graph == "RuntimeError: operation not permitted when stream is capturing"


def test_sides_take_turns():
    order = []
    chains = [_Chain(1e-3), _Chain(2e-3)]
    clocks = [SlopeClock(chain, chain.now) for chain in chains]
    for name, one in zip("ab", clocks, strict=True):
        one.take = lambda name=name: order.append(name)
    take_turns(clocks, 3)
    assert "".join(order) == "ababab"


def test_deviation():
    assert deviation([1.0, 2.0, 3.0, 4.0, 100.0]) == 1.0
