"""Records: a written record can be read, and a wrong one is refused with its file and key."""

import copy
import json
import math
import os
import tty
from functools import partial
from pathlib import Path

import pytest
from bench import made

from duoln.bench import machine, records
from duoln.bench.row import Row
from duoln.errors import CheckpointError, DataError, DataFormatError, DataMissingError, RecordError, UsageError
from duoln.kernels import native
from duoln.testing import check_error

ROOT = Path(__file__).resolve().parents[2]


def test_what_is_written_is_read(tmp_path, numpy_backend):
    row = Row("layer_norm", (8, 16), "backward", cache="cold", moved=8 * 10**9, flops=10**9)
    case = records.make_case(row, {"side": "duoln", "samples": [3.0, 1.0, 2.0], "facts": {"warmups": 1, "rule": "own"}}, 2.0, runs=7)
    assert case["median"] == 2.0 and case["mad"] == 1.0 and case["gbps"] == 4.0 and case["fraction_of_copy"] == 2.0
    assert case["gflops"] == 0.5 and case["runs"] == 7 and case["rule"] == "own" and case["pass"] == "forward+backward"
    warm = records.make_case(row._replace(cache="warm"), {"side": "duoln", "samples": [3.0], "facts": {"warmups": 1}}, 2.0)
    assert warm["fraction_of_copy"] is None
    record = records.make_record("ops", numpy_backend, None, 2.0, [case])
    records.write(record, tmp_path / "a.json")
    assert records.load(tmp_path / "a.json") == record
    assert record["label"] == machine.default_label(numpy_backend) and record["backend"]["name"] == "numpy"
    assert record["host"]["cores"] >= 1 and record["time"].endswith("+00:00")


def test_percentiles_have_their_share_of_the_samples_on_either_side():
    for count in (1, 2, 5, 10, 11, 20, 50, 100, 130):
        ascending = [float(k) for k in range(1, count + 1)]
        figures = records.spread(ascending[::-1])
        low, middle, high = figures["p10"], figures["median"], figures["p90"]
        assert middle == (count + 1) / 2 and low == count + 1 - high, count  # as far from the least as from the largest
        for below in (sum(s < low for s in ascending), sum(s > high for s in ascending)):
            assert below == count // 10 if count % 10 == 0 else below <= count / 10, count


def test_a_record_says_how_rules_are_compiled(numpy_backend, monkeypatch):
    if native.compiler() is not None:
        backend = records.make_record("ops", numpy_backend, None, 2.0, [])["backend"]
        assert backend["rules"] == "compiled" and backend["compiler"] == native.compiler().version
        assert "-march=" in backend["flags"] and int(backend["vector_bits"]) in (0, 64, 128, 256, 512)
    monkeypatch.setenv("DUOLN_NATIVE", "0")
    record = records.make_record("ops", numpy_backend, None, 2.0, [])
    assert (record["backend"]["rules"], record["backend"]["reason"]) == ("interpreted", "DUOLN_NATIVE=0 is set")
    assert record["flags"]["DUOLN_NATIVE"] == "0"


def test_the_documented_keys_are_the_checked_ones():
    named = records.__doc__
    for key in (*made.RECORD, *made.CASE):
        assert key in named, key
        broken = made.record()
        (broken if key in made.RECORD else broken["cases"][0]).pop(key)
        check_error(RecordError, partial(records.check_record, broken, "f.json"), "f.json: ", key, "no such key")


@pytest.mark.parametrize(("path", "value", "words"), [
    ("schema", 3, ["schema", "duoln-bench/1", "3"]),
    ("kind", "ups", ["kind", "ops, rnn, attention, train, language-model", "'ups'"]),
    ("label", "", ["label", "''"]),
    ("git", {"sha": "abc"}, ["git.dirty", "no such key"]),
    ("backend", {"name": 1}, ["backend", "texts"]),
    ("host", {"cpu": "x"}, ["host.cores"]),
    ("flags", {"A": 1}, ["flags"]),
    ("copy_gbps", 0, ["copy_gbps", "a number from"]),
    ("copy_gbps", math.nan, ["copy_gbps", "nan"]),
    ("cases", {}, ["cases", "a list"]),
    ("cases", [3], ["cases[0]", "an object", "3"]),
    ("cases.0.pass", "backward", ["cases[0].pass", "forward+backward", "'backward'"]),
    ("cases.0.shape", [8, True], ["cases[0].shape"]),
    ("cases.0.shape", [], ["cases[0].shape"]),
    ("cases.0.samples", [], ["cases[0].samples", "at least one"]),
    ("cases.0.samples", [1.0, math.inf], ["cases[0].samples", "inf"]),
    ("cases.0.samples", [1.0, -1.0], ["cases[0].samples", "above 0"]),
    ("cases.0.median", 10**400, ["cases[0].median"]),
    ("cases.0.median", 5e-324, ["cases[0].median", "a number from 1e-100"]),
    ("cases", [made.CASE, {**made.CASE, "median": 2.0}], ["cases[1]", "once", "cases[0]"]),
    ("cases.0.bytes", 1.5, ["cases[0].bytes", "whole number"]),
])
def test_errors_name_file_and_key(tmp_path, path, value, words):
    broken = made.record()
    *way, last = path.split(".")
    place = broken
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    place[last] = copy.deepcopy(value)
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(broken))
    check_error(RecordError, lambda: records.load(file), str(file), *words)


@pytest.mark.parametrize(("content", "error", "words"), [
    (b"", DataFormatError, ["byte 0", "the end of the file"]),
    (b'{"schema": "duoln-bench/1", "cases": [', DataFormatError, ["byte 38", "the end of the file"]),
    (b'{"schema" 1}', DataFormatError, ["byte 10", "delimiter"]),
    (b'{"a": "\xff"}', DataFormatError, ["byte 7", "UTF-8"]),
    (b"[" * 100000, DataFormatError, ["JSON"]),
    (b"1" * 5000, DataFormatError, ["JSON"]),
    (b'{"a": 1, "b": {"c": 1, "c": 2}}', DataFormatError, ["'c' twice"]),
    (b"[1, 2]", RecordError, ["an object", "[1, 2]"]),
    (b'{"name": "another program\'s"}', RecordError, ["schema", "no such key"]),
    (b'{"schema": "duoln-bench/0"}', UsageError, ["duoln-bench/1", "'duoln-bench/0'"]),
])
def test_files_that_are_no_records(tmp_path, content, error, words):
    file = tmp_path / "other.json"
    file.write_bytes(content)
    check_error(error, lambda: records.load(file), str(file), *words)


def test_a_file_that_is_not_there(tmp_path):
    check_error(DataMissingError, lambda: records.load(tmp_path / "none.json"), "none.json", "nothing there")
    check_error(DataError, lambda: records.load(tmp_path), "cannot be read")


def test_every_cut_of_a_file_is_refused(tmp_path):
    text = records.as_json(made.record())
    for length in range(0, len(text) - 1, 97):
        (tmp_path / "cut.json").write_text(text[:length])
        check_error(DataFormatError, lambda: records.load(tmp_path / "cut.json"), "cut.json", "at byte")


def test_a_record_with_nan_is_not_written(numpy_backend):
    check_error(RecordError, lambda: records.make_record("ops", numpy_backend, "x", math.nan, []), "copy_gbps")


def test_a_target_that_cannot_be_written(tmp_path):
    check_error(UsageError, lambda: records.check_target(tmp_path), "a folder")
    check_error(UsageError, lambda: records.check_target(tmp_path / "none" / "a.json"), "none")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    check_error(UsageError, lambda: records.check_target(tmp_path / "link"), "a link to nothing")
    check_error(CheckpointError, lambda: records.write(made.record(), tmp_path / "none" / "a.json"), "cannot be written")


def test_timings_are_added_line_by_line(tmp_path):
    file = tmp_path / "timings.jsonl"
    assert records.append_timings(made.record(), file) == 1
    file.write_text(file.read_text().rstrip("\n"))  # as an editor may leave it
    assert records.append_timings(made.record({"cache": "warm"}, {"pass": "step"}, label="b"), file) == 2
    lines = records.load_timings(file)
    assert [(line["label"], line["cache"], line["pass"]) for line in lines] == [
        ("made up", "cold", "forward"), ("b", "warm", "forward"), ("b", "cold", "step")]
    assert lines[0]["machine"]["host"]["cores"] == 2 and "cases" not in lines[0]["machine"]
    file.write_text(f'{file.read_text()}{{"label": "x"}}\n')
    check_error(RecordError, lambda: records.load_timings(file), "timings.jsonl, line 4", "machine")


def test_our_own_timings():
    """What kernels/timings.jsonl holds was measured, by some version of duoln, on a named machine."""
    lines = records.load_timings(ROOT / "kernels" / "timings.jsonl")
    assert {"numpy", "mlx"} <= {line["machine"]["backend"]["name"] for line in lines}
    for line in lines:
        assert line["clock"] == "wall_slope" and len(line["samples"]) >= 5 and line["max_error"] < 1e-4


def test_timings_for_a_terminal(tmp_path):
    """A device is not read before it is written: the read would wait for ever. The device is one of our own."""
    ours, theirs = os.openpty()
    try:
        tty.setraw(theirs)
        os.set_blocking(theirs, False)
        assert records.append_timings(made.record(), Path(os.ttyname(theirs))) == 1
        assert b'"label"' in os.read(ours, 1 << 12)
    finally:
        os.close(ours)
        os.close(theirs)
