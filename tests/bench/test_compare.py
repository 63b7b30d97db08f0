"""`duoln bench ops` and `duoln compare` as a person uses them, and comparisons that would mislead."""

import json
import os
import subprocess
import sys

import pytest
from bench import made
from conftest import NAMES, PATIENCE

from duoln.bench import compare, groups, row as rows_of, text
from duoln.bench.records import CLOCKS
from duoln.cli import main
from duoln.errors import UsageError
from duoln.kernels import native
from duoln.runs.commit import commit_words
from duoln.testing import check_error


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """numpy.json and mlx.json, measured here on tiny shapes."""
    if "mlx" not in NAMES:
        pytest.skip("MLX is not under test")
    folder = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_of, "CACHE_BYTES", 1 << 20)
        patch.setattr(groups, "COPIED", (256, 256))
        for name in ("numpy", "mlx"):
            code = main(["bench", "ops", "--backend", name, "--shape", "8,16", "--shape", "64,256", "--rounds", "3", "--runs", "1",
                         "--json", str(folder / f"{name}.json"), "--label", f"here, {name}",
                         "--append", str(folder / "timings.jsonl")])
            assert code == 0
    return folder


def _write(path, record):
    path.write_text(json.dumps(record))
    return path


def _compare(*args):
    return main(["compare", *map(str, args)])


def test_a_table_has_the_sides_of_a_work_below_each_other():
    headings, rows = text.table([{**made.CASE, "ratio": 1.0}, {**made.CASE, "side": "torch", "rule": None, "ratio": 0.5, "samples": [4e-3, 2e-3, 4e-3]},
                                 {**made.CASE, "op": "other", "gbps": None, "fraction_of_copy": None}])
    assert headings == ["work", "side", "time", "+-", "duoln / side", "quartiles", "rule", "GB/s", "of copy"]
    assert [row[:2] for row in rows] == [["layer_norm fwd 8x16", "duoln"], ["", "torch"], ["other fwd 8x16", "duoln"]]
    assert rows[0][3:6] == ["5%", "", ""] and rows[1][4:7] == ["0.50", "0.50 - 0.95", ""] and rows[2][-2:] == ["", ""]


@pytest.mark.long
def test_two_files_measured_here(folder, capsys):
    assert _compare(folder / "numpy.json", folder / "mlx.json") == 0
    stderr = capsys.readouterr().out
    for word in ("layer_norm", "softmax_cross_entropy", "fwd+bwd 64x256", "#1 here, numpy", "#2 here, mlx",
                 "rule of layer_norm, duoln", "compiled in #1" if native.machine_refusal() is None else "composed in #1",
                 "composed in #2"):
        assert word in stderr
    assert "not comparable" not in stderr
    assert (folder / "timings.jsonl").read_text().count("\n") == 2 * 21  # a copy, and five operators at two shapes, forward and backward


def test_json(folder, capsys):
    paths = [folder / "numpy.json", folder / "mlx.json", folder / "numpy.json"]
    assert _compare(*paths, "--json") == 0
    comparison = json.loads(capsys.readouterr().out)
    assert len(comparison["rows"]) == 21 and [f["label"] for f in comparison["files"]] == ["here, numpy", "here, mlx", "here, numpy"]
    ours = json.loads((folder / "numpy.json").read_text())["cases"]
    for row in comparison["rows"]:
        [case] = [c for c in ours if all(c[key] == row[key] for key in ("op", "pass", "shape"))]
        first, second, third = row["cells"]
        assert first["seconds"] == third["seconds"] == case["median"] and third["speedup"] == 1.0
        assert second["speedup"] == pytest.approx(first["seconds"] / second["seconds"])
        assert first["fraction_of_copy"] == case["fraction_of_copy"]


@pytest.mark.long
@pytest.mark.parametrize("columns", ["50", "200"])
def test_through_a_pipe_of_any_width(folder, columns):
    out = subprocess.run([sys.executable, "-m", "duoln", "compare", folder / "numpy.json", folder / "mlx.json"], text=True,
                         capture_output=True, check=True, timeout=PATIENCE, env={**os.environ, "COLUMNS": columns})
    assert "fwd+bwd 64x256" in out.stdout and "\x1b" not in out.stdout and out.stderr == ""
    assert "\u2026" not in out.stdout and all(len(line) <= int(columns) for line in out.stdout.splitlines() if "│" in line)


@pytest.mark.parametrize(("case", "reason"), [
    ({"cache": "warm"}, "cache is cold in #1, warm in #2"),
    ({"clock": "wall_run"}, "clock is wall time a launch in #1, wall time a run in #2"),
    ({"dtype": "float64"}, "dtype is float32 in #1, float64 in #2"),
    ({"cache": "warm", "dtype": "float64"}, "dtype is float32 in #1, float64 in #2; cache is cold in #1, warm in #2"),
    ({"shape": [8, 17]}, "in #2, not in #1"),
    ({"op": "copy"}, "in #1, not in #2"),
    ({"side": "torch"}, "in #1, not in #2"),
    ({"settings": {"hidden": 3}}, "in #1, not in #2"),
])
def test_nothing_in_common_is_refused(tmp_path, capsys, case, reason):
    a, b = _write(tmp_path / "a.json", made.record()), _write(tmp_path / "b.json", made.record(case))
    assert _compare(a, b) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "no case in common" in captured.err and reason in captured.err
    both = _write(tmp_path / "both.json", made.record({}, case))
    assert _compare(a, both) == 0
    assert _compare(a, both, b) == 2


def test_the_clock_is_named_in_words(tmp_path):
    once = _write(tmp_path / "a.json", made.record({}))
    title, headings, _ = compare.table(compare.compare([once, once]))
    assert title.endswith("(duoln, float32, cold, wall time a launch)") and headings[0] == "case"
    both = _write(tmp_path / "b.json", made.record({}, {"shape": [9, 9], "clock": "wall_run"}))
    title, headings, rows = compare.table(compare.compare([both, both]))
    assert headings[:2] == ["case", "clock"] and [row[1] for row in rows] == ["", "wall time a launch", "wall time a run"]
    assert set(text.CLOCKS) == set(CLOCKS)


def test_what_some_files_lack_is_listed(tmp_path):
    a = _write(tmp_path / "a.json", made.record({}, {"shape": [9, 9]}, {"shape": [7, 7], "cache": "warm"}))
    b = _write(tmp_path / "b.json", made.record({}, {"shape": [7, 7]}, {"shape": [5, 5]}))
    comparison = compare.compare([a, b, a])
    assert [row.case["shape"] for row in comparison.rows] == [[8, 16], [9, 9], [7, 7]]
    assert [cell is None for cell in comparison.rows[1].cells] == [False, True, False]
    assert [(left["case"], left["why"]) for left in comparison.as_json()["not_comparable"]] == [
        (f"layer_norm fwd {case}, wall time a launch", why) for case, why in (
            ("9x9, duoln, float32, cold", "in #1, not in #2"), ("7x7, duoln, float32, warm", "cache is warm in #1, cold in #2"),
            ("5x5, duoln, float32, cold", "in #2, not in #1"))]
    assert "not comparable, in #2, not in #1: layer_norm fwd 5x5, duoln, float32, cold, wall time a launch" in \
        compare.remarks(comparison)


def test_what_one_file_alone_has_is_one_line(tmp_path):
    shapes = [{"op": op, "shape": [n, n]} for op in ("layer_norm", "rms_norm") for n in range(2, 15)]
    a = _write(tmp_path / "a.json", made.record({}, *shapes))
    b = _write(tmp_path / "b.json", made.record({}))
    [_, line] = compare.remarks(compare.compare([a, b]))
    assert line == "not comparable, in #1, not in #2: 26 cases (layer_norm 13, rms_norm 13); --json names them"


def test_one_figure_a_group(tmp_path, capsys):
    def case(op, side, size, seconds):
        return {"op": op, "side": side, "shape": [size, 8], "samples": [seconds], "median": seconds}

    a = _write(tmp_path / "a.json", made.record(
        case("layer_norm", "duoln", 2, 4.0), case("layer_norm", "duoln", 3, 9.0), case("layer_norm", "torch", 2, 1.0),
        case("rms_norm", "duoln", 2, 1.0)))
    b = _write(tmp_path / "b.json", made.record(
        case("layer_norm", "duoln", 2, 2.0), case("layer_norm", "duoln", 3, 1.125), case("layer_norm", "torch", 2, 2.0)))
    c = _write(tmp_path / "c.json", made.record(case("layer_norm", "duoln", 2, 4.0), case("rms_norm", "duoln", 2, 0.5)))
    assert [(group["op"], group["side"], [mean and tuple(mean.values()) for mean in group["means"]])
            for group in compare.groups(compare.compare([a, b, c]))] == [
        ("layer_norm", "duoln", [(pytest.approx(4.0), 2), (pytest.approx(1.0), 1)]),
        ("layer_norm", "torch", [(pytest.approx(0.5), 1), None]), ("rms_norm", "duoln", [None, (pytest.approx(2.0), 1)])]
    assert _compare(a, b, c) == 0
    stdout = capsys.readouterr().out
    assert stdout.startswith("Speed-up over #1 made up")
    assert stdout.index("4.00x (2)") < stdout.index("0.50x (1)") < stdout.index("Time, speed-up")
    assert _compare(a, b, "--json") == 0
    assert json.loads(capsys.readouterr().out)["groups"][0]["means"] == [{"speedup": pytest.approx(4.0), "rows": 2}]


def test_warnings(tmp_path):
    a = _write(tmp_path / "a.json", made.record({"rule": "a"}, flags={"DUOLN_THREADS": "1", "CUPY_TF32": "0"}))
    b = _write(tmp_path / "b.json", made.record({"rule": "b"}, flags={"CUPY_TF32": "0"}, duoln="0.2.0", git=None))
    assert compare.compare([a, b]).warnings == [
        "duoln: 0.1.0 in #1, 0.2.0 in #2", "DUOLN_THREADS: 1 in #1, not set in #2",
        "rule of layer_norm, duoln: a in #1, b in #2"]
    assert compare.compare([a, a]).warnings == []


def test_spreads_that_are_too_wide_to_compare(tmp_path, capsys):
    steady = _write(tmp_path / "a.json", made.record({}, {"op": "copy", "shape": [64, 64]}, {"shape": [9, 9], "mad": 2e-4}))
    shaken = _write(tmp_path / "b.json", made.record(
        {"mad": 2.02e-4}, {"op": "copy", "shape": [64, 64], "mad": 9.2e-4}, {"shape": [9, 9], "mad": 6e-4}))
    assert compare.compare([steady, steady]).warnings == []
    copies, cases = compare.compare([steady, shaken]).warnings
    assert copies.startswith("spread of a copy in #2: 1 of 1 above 10%, most 46% (copy fwd 64x64")
    assert cases.startswith("spread of cases in #2: 2 of 2 above 10%, most 30% (layer_norm fwd 9x9")
    assert _compare(shaken, steady) == 0
    assert "warning: spread of a copy in #1: 1 of 1 above 10%, most 46%" in capsys.readouterr().out


@pytest.mark.parametrize(("content", "code", "words"), [
    (None, 4, ["b.json", "nothing there"]),
    (json.dumps(made.RECORD)[:300], 4, ["b.json", "byte", "the end of the file"]),
    ('{"schema": "duoln-bench/9"}', 2, ["b.json", "duoln-bench/1", "duoln-bench/9"]),
    ("{}", 4, ["b.json", "schema"]),
    (json.dumps({**made.RECORD, "copy_gbps": float("nan")}), 4, ["b.json", "copy_gbps", "nan"]),
    (json.dumps({**made.RECORD, "cases": []}), 2, ["b.json has no cases"]),
])
def test_files_that_cannot_be_compared(tmp_path, capsys, content, code, words):
    a = _write(tmp_path / "a.json", made.record())
    if content is not None:
        (tmp_path / "b.json").write_text(content)
    for paths in ([a, tmp_path / "b.json"], [tmp_path / "b.json", a]):
        assert _compare(*paths) == code
        captured = capsys.readouterr()
        assert captured.out == "" and all(word in captured.err.replace("\n", "") for word in words), captured.err


def test_one_file_is_not_enough(tmp_path):
    check_error(UsageError, lambda: compare.compare([tmp_path]), "two files", "1")


@pytest.mark.parametrize(("seconds", "words"), [
    (2.5, "2.5 s"), (1234.0, "1234 s"), (0.0123456, "12.3 ms"), (1.5e-5, "15 us"), (9.996e-4, "1000 us"), (3e-9, "3 ns")])
def test_durations(seconds, words):
    assert text.duration(seconds) == words


def test_a_commit_is_told_by_its_first_ten_digits():
    sha = "0123456789abcdef0123456789abcdef01234567"
    assert commit_words({"sha": sha, "dirty": False}) == "0123456789"
    assert commit_words({"sha": sha, "dirty": True}) == "0123456789 with changes"
    assert commit_words(None) is None


def test_folders_of_runs_are_for_another_command(tmp_path, capsys):
    assert main(["compare", str(tmp_path)]) == 2
    assert f"for runs: duoln report {tmp_path}" in capsys.readouterr().err


def test_files_of_one_machine_say_how_far_times_vary(folder, tmp_path, capsys):
    again = json.loads((folder / "numpy.json").read_text())
    for case in again["cases"]:
        if case["op"] == "copy":
            case["median"] *= 1.25
    (tmp_path / "again.json").write_text(json.dumps(again))
    assert _compare(folder / "numpy.json", tmp_path / "again.json") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "#1 and #2 are of one machine" in out and "(copies, peers; 1 cases) differs by 25% in the median, 25% at most" in out
    assert _compare(folder / "numpy.json", folder / "mlx.json") == 0
    assert "are of one machine" not in capsys.readouterr().out
