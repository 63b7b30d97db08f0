"""Which runs decide a claim."""

import math
from types import SimpleNamespace

from paper_runs import ORIGINAL, made

from duoln.plugins.paper.contents import Length
from duoln.plugins.paper.evidence import by_setting, choose, differences
from duoln.plugins.paper.rules import Metric, better, less_sensitive
from duoln.tasks import Dataset
from duoln.tasks.registry import Registry

MNIST = Registry(["mnist"]).tasks["mnist"].task
NLL = Metric("train_nll", "lowest", "train NLL")
RULE = better("ln", ("bn",), (NLL,))
LENGTH = Length(1000, "made")
SUBSTITUTE = Dataset("digits", "substitute")


def _chosen(runs, rule=RULE, length=LENGTH):
    return choose(MNIST, rule, length, by_setting(MNIST, runs))


def _pair(values=(0.5, 0.4), **settings):
    return [made("ln", list(values), **settings), made("bn", [v + 1 for v in values], **settings)]


def test_the_seeds_of_one_setting_are_joined_and_only_common_ones_count():
    evidence = _chosen([*_pair(seed=0), *_pair(seed=1), made("ln", [0.5, 0.4], seed=2)])
    assert evidence.seeds == [0, 1] and evidence.answer.holds
    assert {run.variant for run in evidence.runs} == {"ln", "bn"} and len(evidence.runs) == 4


def test_runs_of_several_settings_are_never_mixed():
    apart = [made("ln", [0.5], learning_rate=0.1), made("bn", [0.9], learning_rate=0.2)]
    assert _chosen(apart) is None
    evidence = _chosen([*apart, *_pair(learning_rate=0.3)])
    assert {run.config["learning_rate"] for run in evidence.runs} == {0.3}
    assert _chosen([made("ln", [0.5]), made("bn", [0.9], dataset=SUBSTITUTE)]) is None


def _task(selection=None, **variants):
    return SimpleNamespace(selection=selection, variants={"ln": {"norm": "layer"}, "bn": {"norm": "batch"}, **variants})


def test_a_setting_that_one_variant_alone_overrides_is_equal_among_the_others():
    task = _task(wide={"norm": "", "hidden": 9})
    rule = better("wide", ("ln", "bn"), (NLL,))
    runs = [made("wide", [0.1], hidden=9), made("ln", [0.2], hidden=3), made("bn", [0.3], hidden=4)]
    assert choose(task, rule, LENGTH, by_setting(task, runs)) is None
    runs.append(made("bn", [0.3], hidden=3))
    assert [run.config["hidden"] for run in choose(task, rule, LENGTH, by_setting(task, runs)).runs] == [9, 3, 3]


def test_with_a_free_rate_each_variant_has_its_best_one_by_the_selection():
    task = _task(("dev", "highest"))
    runs = [made(variant, [dev + seed], seed, metric="dev", learning_rate=rate) for seed in range(3)
            for variant, levels in (("ln", {0.1: 60.0, 0.2: 80.0, 0.4: 70.0}), ("bn", {0.1: 50.0, 0.2: 40.0, 0.8: math.nan}))
            for rate, dev in levels.items()]
    free = better("ln", ("bn",), (Metric("dev", "highest", "dev"),), free=("learning_rate",))
    evidence = choose(task, free, LENGTH, by_setting(task, runs))
    assert [setting.config["learning_rate"] for setting in evidence.settings] == [0.2, 0.1] and evidence.seeds == [0, 1, 2]
    newest = [made(variant, [0.5], learning_rate=0.4, time="2030-01-01") for variant in ("ln", "bn")]
    older = [made(variant, [0.5], learning_rate=0.3) for variant in ("ln", "bn")]
    assert _chosen([*newest, *older]).settings[0].config["learning_rate"] == 0.4


def test_the_best_data_count_first_then_the_length_then_the_seeds():
    short, long = _pair(), _pair((0.5, 0.4, 0.3), epochs=9)
    on_others = [run for seed in range(3) for run in _pair((0.5,) * 5, seed=seed, dataset=SUBSTITUTE)]
    three = [run for seed in range(3) for run in _pair(seed=seed, learning_rate=0.1)]
    assert _chosen(on_others).share == 0.5 and len(_chosen(on_others).seeds) == 3
    evidence = _chosen([*on_others, *short])
    assert evidence.dataset == ORIGINAL and evidence.share == 0.2
    assert _chosen([*on_others, *short, *long]).share == 0.3
    assert len(_chosen([*short, *three]).seeds) == 3
    assert _chosen([*three, *long]).share == 0.3


def test_the_shortest_run_is_the_length_and_another_batch_size_needs_other_updates():
    runs = [made("ln", [0.5, 0.4, 0.3], epochs=9), made("bn", [0.9], epochs=9)]
    evidence = _chosen(runs)
    assert evidence.share == 0.1 and evidence.shortest is runs[1]
    assert _chosen(_pair(batch_size=64), length=Length(1000, "made", batch=128)).share == 0.1 and LENGTH.at(64) == 1000


def test_a_rule_may_ask_for_settings():
    runs = [run for size in (4, 128) for run in _pair(batch_size=size)]
    rule = better("ln", ("bn",), (NLL,), settings={"batch_size": 4})
    assert {run.config["batch_size"] for run in _chosen(runs, rule).runs} == {4}
    steadier = less_sensitive(("ln", "bn"), NLL, "batch_size", (4, 128))
    assert [(run.variant, run.config["batch_size"]) for run in _chosen(runs, steadier).runs] == [
        ("ln", 4), ("ln", 128), ("bn", 4), ("bn", 128)]
    runs[0].config["hidden"] = 3
    assert _chosen(runs, steadier) is None


def test_epochs_may_differ_between_batch_sizes_only():
    runs = [*_pair((0.5, 0.4, 0.3), batch_size=4), *_pair(batch_size=128)]
    assert _chosen(runs, less_sensitive(("ln", "bn"), NLL, "batch_size", (4, 128))) is not None
    assert _chosen([runs[0], runs[3]]) is None


def test_of_equal_runs_the_longest_then_the_newest_counts():
    longer, newer = made("ln", [0.3, 0.2], epochs=9), made("ln", [0.1], epochs=9, time="2027-01-01")
    evidence = _chosen([longer, newer, made("bn", [0.9, 0.8], epochs=9)])
    assert evidence.runs[0] is longer
    again = made("ln", [0.7, 0.7], epochs=9, time="2027-01-01")
    assert _chosen([again, longer, made("bn", [0.9, 0.8], epochs=9)]).runs[0] is again


def test_a_run_that_is_not_its_variant_is_left_out():
    assert by_setting(MNIST, [made("ln", [0.5], norm="none"), made("other", [0.5])]) == []


def test_settings_that_are_not_the_papers():
    [setting] = by_setting(MNIST, [made("ln", [0.5], learning_rate=0.5, evaluate_every=7)])
    assert differences(MNIST, setting) == {"epochs": (1, 60), "learning_rate": (0.5, 0.001)}
