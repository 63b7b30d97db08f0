"""What a report calls its runs: settings that differ, short folders, seeds of one setting."""

import csv
from pathlib import Path

import pytest
from runs.reading import Reading, made_curve

from duoln.runs.curves_csv import write_csv
from duoln.runs.series import Range, series_of, short_names


def _labels(runs, by="run"):
    return [s.label() for s in series_of(Reading(), runs, by)]


def test_variants_alone_need_no_more(tmp_path):
    assert _labels([made_curve(tmp_path / v, v) for v in ("ln", "none")]) == ["ln", "none"]


def test_settings_that_differ_are_named_and_no_others(tmp_path):
    runs = [made_curve(tmp_path / "a" / "ln", "ln", rate=1e-3, size=4), made_curve(tmp_path / "b" / "ln", "ln", rate=1e-4, size=4),
            made_curve(tmp_path / "b" / "none", "none", rate=1e-4, size=4)]
    assert _labels(runs) == ["ln, rate 0.001 (a)", "ln, rate 0.0001 (b)", "none, rate 0.0001 (b)"]


def test_a_setting_of_the_variants_is_named_where_it_differs_within_one(tmp_path):
    runs = [made_curve(tmp_path / "a", "ln"), made_curve(tmp_path / "b", "ln", norm="theano"), made_curve(tmp_path / "c", "none")]
    assert _labels(runs) == ["ln, norm layer (a)", "ln, norm theano (b)", "none, norm none (c)"]


def test_a_folder_that_is_named_after_the_settings_says_no_more(tmp_path):
    runs = [made_curve(tmp_path / "ln-rate0.1-filea-b", "ln", rate=0.1, file="a/b"), made_curve(tmp_path / "first", "ln", rate=0.2, file="c")]
    assert _labels(runs) == ["ln, rate 0.1, file a/b", "ln, rate 0.2, file c (first)"]


def test_a_setting_that_a_run_lacks(tmp_path):
    assert _labels([made_curve(tmp_path / "a", "ln"), made_curve(tmp_path / "b", "ln", new=None)]) == [
        "ln, new not set (a)", "ln, new None (b)"]


@pytest.mark.parametrize(("paths", "names"), [
    (["/r/a/ln", "/r/a/none"], ["ln", "none"]),
    (["/r/a/ln", "/r/b/ln", "/r/b/none"], ["a/ln", "b/ln", "b/none"]),
    (["/r/a/x/ln", "/r/b/x/ln"], ["a/x/ln", "b/x/ln"]),
    (["/ln", "/r/ln"], ["//ln", "r/ln"]),
    ([], []),
])
def test_folders_are_short_and_unique(paths, names):
    assert short_names([Path(path) for path in paths]) == names


def test_seeds_of_one_setting_are_one_series(tmp_path):
    runs = [made_curve(tmp_path / str(k) / "ln", "ln", 1.0 + k, seed=k) for k in range(3)]
    runs.append(made_curve(tmp_path / "other" / "ln", "ln", rate=2.0))
    first, second = series_of(Reading(), runs, "seed")
    assert first.label() == "ln, rate not set (3 seeds)" and second.label() == "ln, rate 2.0"
    assert first.figure("test_error") == Range(0.2, 0.1, 0.3) and second.figure("test_error") == 0.1
    assert _labels(runs[:3]) == ["ln, seed 0 (0)", "ln, seed 1 (1)", "ln, seed 2 (2)"]


def _rows(series, path, by="run"):
    return list(csv.DictReader(write_csv(series, path, by).read_text().splitlines()))


def test_the_csv_tells_runs_apart(tmp_path):
    runs = [made_curve(tmp_path / "a" / "ln", "ln", rate=0.1), made_curve(tmp_path / "b" / "ln", "ln", 2.0, rate=0.2)]
    rows = _rows(series_of(Reading(), runs), tmp_path / "c.csv")
    assert [(r["run"], r["rate"], r["step"], r["valid_error"]) for r in rows] == [
        ("a/ln", "0.1", "10", "0.1"), ("a/ln", "0.1", "20", "0.05"), ("b/ln", "0.2", "10", "0.2"), ("b/ln", "0.2", "20", "0.1")]


def test_the_csv_by_seed_has_median_and_range(tmp_path):
    runs = [made_curve(tmp_path / str(k), "ln", 1.0 + k, seed=k) for k in range(3)]
    runs[2] = runs[2]._replace(points=runs[2].points[:1])
    first, second = _rows(series_of(Reading(), runs, "seed"), tmp_path / "c.csv", "seed")
    assert [first[key] for key in ("seeds", "step", "valid_error", "valid_error_low", "valid_error_high")] == [
        "3", "10", "0.2", "0.1", "0.3"]
    assert second["seeds"] == "2" and second["valid_error_high"] == "0.1" and "seed" not in second
