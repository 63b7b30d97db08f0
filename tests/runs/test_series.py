"""What a report calls its runs: settings that differ, short folders, seeds of one setting."""

import csv
import itertools
import json
import math
from pathlib import Path

import pytest
from runs.reading import Reading, made_curve

from duoln.cli import console
from duoln.cli.report import distinguishing_columns, over_time, result_row, results_in_markdown
from duoln.errors import DataFormatError
from duoln.runs.curve import read_dataset
from duoln.runs.curves import read_curves
from duoln.runs.series import Range, series_of, short_names, write_csv
from duoln.tasks import Task
from duoln.tasks.values import Dataset
from duoln.testing.closeness import check_error


def _labels(runs, by="run"):
    return [s.label() for s in series_of(Reading(), runs, by)]


def test_variants_alone_need_no_more(tmp_path):
    assert _labels([made_curve(tmp_path / v, v) for v in ("ln", "none")]) == ["none", "ln"]


def test_settings_that_differ_are_named_and_no_others(tmp_path):
    runs = [made_curve(tmp_path / "a" / "ln", "ln", rate=1e-3, size=4), made_curve(tmp_path / "b" / "ln", "ln", rate=1e-4, size=4),
            made_curve(tmp_path / "b" / "none", "none", rate=1e-4, size=4)]
    assert _labels(runs) == ["none, rate 0.0001 (b)", "ln, rate 0.001 (a)", "ln, rate 0.0001 (b)"]


def test_a_setting_of_the_variants_is_named_where_it_differs_within_one(tmp_path):
    runs = [made_curve(tmp_path / "a", "ln"), made_curve(tmp_path / "b", "ln", norm="theano"), made_curve(tmp_path / "c", "none")]
    assert _labels(runs) == ["none, norm none (c)", "ln, norm layer (a)", "ln, norm theano (b)"]


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
    with write_csv(series, path, by).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, strict=True))


def test_the_csv_tells_runs_apart(tmp_path):
    runs = [made_curve(tmp_path / "a" / "ln", "ln", rate=0.1), made_curve(tmp_path / "b" / "ln", "ln", 2.0, rate=0.2)]
    rows = _rows(series_of(Reading(), runs), tmp_path / "c.csv")
    assert [(r["run"], r["rate"], r["update"], r["valid_error"]) for r in rows] == [
        ("a/ln", "0.1", "10", "0.1"), ("a/ln", "0.1", "20", "0.05"), ("b/ln", "0.2", "10", "0.2"), ("b/ln", "0.2", "20", "0.1")]


@pytest.mark.parametrize(("text", "cell"), [("a|b", r"a\|b"), ("a\nb", "a b"), ("a\r\nb", "a\\r b"), ("\u202ea", r"\u202ea"), ("`", "`")])
def test_a_text_stays_in_its_cell_of_a_markdown_table(text, cell, tmp_path):
    runs = [made_curve(tmp_path / str(k) / "ln", "ln", note=note, run=k) for k, note in enumerate((text, "another"))]
    series = series_of(Reading(), runs)
    header, _, first, last = results_in_markdown(Reading(), [result_row(Reading(), s) for s in series], distinguishing_columns(series)).split("\n")
    assert f"| {cell} |" in first and "| another |" in last and "| run | note | setting run |" in header
    assert len({line.replace(r"\|", "").count("|") for line in (header, first, last)}) == 1
    over = over_time(Reading(), series, "test_error").split("\n")
    assert len(over) == 4 and len({line.replace(r"\|", "").count("|") for line in over}) == 1 and over[2].count("`") == 2


@pytest.mark.parametrize("text", ["from Windows\r", "a\rb", "a\r\nb", "a\nb", 'a,"b"', "\u2028", "", " ", "=1", "caf\u00e9"])
@pytest.mark.parametrize("by", ["run", "seed"])
def test_a_text_stands_in_the_csv_as_it_is(text, by, tmp_path):
    runs = [made_curve(tmp_path / "a\rb" / "ln", "ln", note=text), made_curve(tmp_path / "c" / "ln", "ln", note="another")]
    rows = _rows(series_of(Reading(), runs, by), tmp_path / "c.csv", by)
    assert [row["note"] for row in rows] == [text] * 2 + ["another"] * 2 and None not in rows[0]
    assert b"\r\n" not in (tmp_path / "c.csv").read_bytes().replace(b"a\r\nb", b"")


def test_a_setting_with_the_name_of_a_column_has_a_column_of_its_own(tmp_path):
    runs = [made_curve(tmp_path / str(k) / "ln", "ln", run=k, dataset=f"d{k}", update=7 + k) for k in range(2)]
    first, *_, last = _rows(series_of(Reading(), runs), tmp_path / "c.csv")
    assert [first[key] for key in ("update", "setting run", "setting dataset", "setting update")] == ["10", "0", "d0", "7"]
    assert [last[key] for key in ("update", "setting run", "setting dataset", "setting update")] == ["20", "1", "d1", "8"]
    assert first["dataset"] not in ("d0", "d1")


def test_the_csv_by_seed_has_median_and_range(tmp_path):
    runs = [made_curve(tmp_path / str(k), "ln", 1.0 + k, seed=k) for k in range(3)]
    runs[2] = runs[2]._replace(points=runs[2].points[:1])
    first, second = _rows(series_of(Reading(), runs, "seed"), tmp_path / "c.csv", "seed")
    assert [first[key] for key in ("seeds", "update", "valid_error", "valid_error_low", "valid_error_high")] == [
        "3", "10", "0.2", "0.1", "0.3"]
    assert second["seeds"] == "2" and second["valid_error_high"] == "0.1" and "seed" not in second


def _same(a, b):
    return repr(a) == repr(b)  # NaN is NaN


@pytest.mark.parametrize("order", list(itertools.permutations((3.0, math.nan, 1.0, 2.0))))
def test_nan_is_left_out_and_counted_in_whatever_order_runs_stand(order, tmp_path):
    """3, NaN, 1 and 2: of the others the median is 2, and the range 1 to 3."""
    runs = [made_curve(tmp_path / str(k) / "ln", "ln", value, seed=k) for k, value in enumerate(order)]
    [s] = series_of(Reading(), runs, "seed")
    assert s.figure("valid_error") == Range(0.1, 0.05, 0.15, 1)
    assert [p[1:] for p in s.points(lambda c: [(p["update"], p["valid_error"]) for p in c.points])] == [(0.2, 0.1, 0.3, 1), (0.1, 0.05, 0.15, 1)]
    assert console.number(s.figure("valid_error"), ".2f") == "0.10\n0.05-0.15\n1 NaN"
    table = results_in_markdown(Reading(), [result_row(Reading(), s)], distinguishing_columns([s], "seed"))
    assert "| 10.00% (5.00%-15.00%, 1 NaN) |" in table
    assert "| 0.4000 (0.2000-0.6000, 1 NaN) | 0.2000 (0.1000-0.3000, 1 NaN) |" in over_time(Reading(), [s], "test_error")
    [row, _] = _rows([s], tmp_path / "c.csv", "seed")
    assert [row[f"valid_error{end}"] for end in ("", "_low", "_high", "_nan")] == ["0.2", "0.1", "0.3", "1"]


def test_nan_in_all_runs_is_nan(tmp_path):
    runs = [made_curve(tmp_path / str(k) / "ln", "ln", math.nan, seed=k) for k in range(2)]
    [s] = series_of(Reading(), runs, "seed")
    assert _same(s.figure("valid_error"), Range(math.nan, math.nan, math.nan, 2)) and "2 NaN" in console.number(s.figure("valid_error"), ".2f")


def test_a_seed_that_is_there_twice_counts_once(tmp_path):
    runs = [made_curve(tmp_path / str(k) / "ln", "ln", 1.0 + k, seed=seed)._replace(starts=[{"time": f"2026-01-0{3 - k}"}])
            for k, seed in enumerate((0, 0, 1))]
    [s] = series_of(Reading(), runs, "seed")
    assert s.label() == "ln (2 seeds)" and distinguishing_columns([s], "seed") == {"seeds": ["2"]}
    assert s.figure("test_error") == Range(0.2, 0.1, 0.3)
    assert s.left_out() == [f"{runs[1].path} is left out: a newer run has seed 0 of ln (2 seeds)"]
    assert _rows([s], tmp_path / "c.csv", "seed")[0]["seeds"] == "2"
    [alone] = series_of(Reading(), runs[1::-1], "seed")
    assert alone.label() == "ln" and alone.runs == [runs[0]] and distinguishing_columns([alone], "seed") == {}


def test_seconds_are_a_median_too(tmp_path):
    runs = [made_curve(tmp_path / str(k) / "ln", "ln", seed=k) for k in range(2)]
    runs[0].points[-1]["wall_s"], runs[1].points[-1]["wall_s"] = 2.0, 6.0
    row = result_row(Reading(), series_of(Reading(), runs, "seed")[0])
    assert (row["seconds_per_epoch"], row["seconds_per_update"]) == (2.0, 0.2)


def test_variants_stand_in_the_order_of_the_task(tmp_path):
    runs = [made_curve(tmp_path / where / variant, variant) for where in "ab" for variant in ("ln", "none")]
    assert [s.variant for s in series_of(Reading(), runs)] == ["none", "none", "ln", "ln"] == [
        s.variant for s in series_of(Reading(), runs[::-1])]


def _noted(path, seed, scale=1.0, **identity):
    """A run that noted, besides its settings, what its bits depend on."""
    return made_curve(path / str(seed) / "ln", "ln", scale, seed=seed)._replace(
        starts=[{"time": f"2026-01-0{seed + 1}", "identity": {"task": "T (a)", "data": "d", "batches": str(seed), **identity}}])


@pytest.mark.parametrize(("part", "heading"), [("task", "code of the task"), ("data", "data read")])
def test_seeds_of_another_code_or_of_other_data_have_a_row_of_their_own(part, heading, tmp_path):
    runs = [_noted(tmp_path, 0), _noted(tmp_path, 1, 3.0), _noted(tmp_path, 2, 50.0, **{part: "other"})]
    first, second = series_of(Reading(), runs, "seed")
    assert (len(first.runs), len(second.runs)) == (2, 1) and second.differences == {heading: "other"}
    assert first.figure("valid_error") == Range(0.1, 0.05, 0.15) and second.figure("valid_error") == 2.5
    assert distinguishing_columns([first, second], "seed")[heading] == [first.differences[heading], "other"]
    assert second.remarks() == [f"seed 2 of ln is not pooled with seeds that differ in {heading}"]
    assert f"0, 1 of ln is not pooled with seeds that differ in {heading}" in first.remarks()[0]


def test_seeds_on_other_hardware_or_by_another_version_are_pooled_with_a_remark(tmp_path):
    runs = [_noted(tmp_path, 0, code="1"), _noted(tmp_path, 1, code="2"), _noted(tmp_path, 2, code="1")]
    [s] = series_of(Reading(), runs, "seed")
    assert s.remarks() == ["the seeds of ln (3 seeds) differ in code: 1 (seed 0, 2); 2 (seed 1)"]
    assert not series_of(Reading(), runs[::2], "seed")[0].remarks()


def test_the_older_run_of_a_seed_is_left_out_only_where_both_are_of_one_code(tmp_path):
    again = _noted(tmp_path / "again", 0)._replace(starts=[{"time": "2026-02-01", "identity": {"task": "T (a)", "data": "d"}}])
    [s] = series_of(Reading(), [_noted(tmp_path, 0), again], "seed")
    assert s.runs == [again] and len(s.older) == 1
    of_two = series_of(Reading(), [_noted(tmp_path, 0), again._replace(starts=[{"identity": {"task": "T (b)", "data": "d"}}])], "seed")
    assert [s.older for s in of_two] == [[], []]


# Files ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("value", [
    None, [], {"name": "x"}, {"provenance": "original"}, {"name": "x", "provenance": 1}, {"name": 1, "provenance": "original"},
    {"name": "x", "provenance": "original", "more": "y"}])
def test_what_is_no_dataset_is_refused(value):
    check_error(DataFormatError, lambda: read_dataset("log.jsonl", value), "log.jsonl", "name, provenance as dataset")


def test_the_table_of_curves_names_the_dataset(tmp_path):
    run = tmp_path / "ln"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"task": "t", "variant": "ln", "precision": "float32", "config": {"batch_size": 4}}))
    entries = [{"event": "start", "dataset": {"name": "digits", "provenance": "original"}},
               {"event": "evaluation", "update": 3, "epoch": 1.0, "wall_s": 0.5, "error": 0.25}]
    (run / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    [curve] = read_curves([run])
    assert curve.dataset == Dataset("digits", "original")
    header, row = write_csv(series_of(Task(), [curve]), tmp_path / "curves.csv").read_text().splitlines()
    assert header.split(",")[:5] == ["run", "variant", "batch_size", "dataset", "provenance"]
    assert row.split(",")[:5] == ["ln", "ln", "4", "digits", "original"]


def test_what_a_resumed_run_went_back_behind_is_no_longer_its_own(tmp_path):
    run = tmp_path / "ln"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"task": "t", "variant": "ln", "precision": "float32", "config": {"batch_size": 4}}))
    start = {"event": "start", "dataset": {"name": "digits", "provenance": "original"}}
    entries = [start, *({"event": kind, "update": k, "loss": 1.0, "epoch": 1.0, "wall_s": 0.5} for k in (1, 2, 3) for kind in ("update", "evaluation")),
               {"event": "norm_stats", "update": 3, "layers": {}}, {"event": "end", "status": "done"}, {**start, "first_update": 2}]
    (run / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    [curve] = read_curves([run])
    assert [p["update"] for p in curve.points] == [update for update, _ in curve.losses] == [1, 2]
    assert not curve.layers and curve.result == {} and len(curve.starts) == 2
