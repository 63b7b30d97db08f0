"""A disk that is full: a named error, exit 1, and a run that goes on once there is room; a log that was cut in mid-line."""

import errno
import json
import os
import random
import re
import resource
import shutil
import subprocess
import sys

import pytest
from crash_points import Plan, outcome, train
from small_runs import fit_into, line_trainer

from duoln.errors import DataFormatError
from duoln.runs.folder import RunFolder
from duoln.runs.log import read_log
from duoln.testing import check_error

PLAN = Plan(patience=3, evaluate_every=2, points=0)


class Full:
    """From the n-th call on that takes room, there is none; `half`: some of that write still fits."""

    def __init__(self, patch, n, half=False):
        self.n, self.half, self.calls, self._names = n, half, [], {}
        really = {name: getattr(os, name) for name in ("write", "fsync", "open", "mkdir")}

        def opened(path, flags, *args, **kwargs):
            if flags & os.O_CREAT and not os.path.exists(path):
                self._take("open", path)
            descriptor = really["open"](path, flags, *args, **kwargs)
            self._names[descriptor] = path
            return descriptor

        def written(descriptor, content):
            self._take("write", self._names.get(descriptor, ""),
                       lambda: really["write"](descriptor, bytes(content)[:len(content) // 2]))
            return really["write"](descriptor, content)

        def synced(descriptor):
            self._take("fsync", self._names.get(descriptor, ""))

        def made(path, *args, **kwargs):
            if not os.path.isdir(path):
                self._take("mkdir", path)
            return really["mkdir"](path, *args, **kwargs)

        for name, function in (("open", opened), ("write", written), ("fsync", synced), ("mkdir", made)):
            patch.setattr(os, name, function)

    def _take(self, name, path, some=lambda: None):
        self.calls.append((name, re.sub(r"\.[0-9a-f]{8}\.part$", ".part", os.path.basename(path))))
        if self.n and len(self.calls) >= self.n:
            if self.half and len(self.calls) == self.n:
                some()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr("duoln.pictures.drawing.refusal", lambda: "pip install matplotlib")


def _calls(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        full = Full(patch, 0)
        assert train(PLAN, tmp_path / "whole") == 0
    return full.calls, outcome(PLAN, tmp_path / "whole")


def _fill_and_go_on(n, half, tmp_path, monkeypatch, capsys, expected):
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    capsys.readouterr()
    with monkeypatch.context() as patch:
        Full(patch, n, half)
        code = train(PLAN, run)
    stderr = capsys.readouterr().err.replace("\n", "")
    assert code == 1 and "No space left on device" in stderr and str(run) in stderr, (n, code, stderr[-400:])
    assert train(PLAN, run) == 0
    results = outcome(PLAN, run)
    for name in expected:
        assert results[name] == expected[name], (n, half)


def test_each_kind_of_write(tmp_path, monkeypatch, capsys):
    """The first call of each kind on each kind of file, and the last line of the log, half of it written."""
    calls, expected = _calls(tmp_path, monkeypatch)
    kinds = {}
    for n, (name, path) in enumerate(calls, start=1):
        kinds.setdefault((name, "update" if path.startswith("update-") else path), n)
    last = max(n for n, call in enumerate(calls, start=1) if call == ("write", "log.jsonl"))
    assert {path for name, path in kinds if name == "write"} == {
        "lock", "log.jsonl", "command.json.part", "config.json.part", "result.json.part", "update", "curves.csv.part"}
    for (name, path), n in kinds.items():
        if name == "write" or path in ("run", "update", "log.jsonl"):
            _fill_and_go_on(n, path == "log.jsonl", tmp_path, monkeypatch, capsys, expected)
    _fill_and_go_on(last, True, tmp_path, monkeypatch, capsys, expected)


@pytest.mark.minutes
def test_every_write(tmp_path, monkeypatch, capsys):
    calls, expected = _calls(tmp_path, monkeypatch)
    points = [(n, half) for n, (name, _) in enumerate(calls, start=1) for half in ([False, True] if name == "write" else [False])]
    for n, half in points:
        _fill_and_go_on(n, half, tmp_path, monkeypatch, capsys, expected)
    print(f"{len(points)} points")


@pytest.mark.minutes
@pytest.mark.skipif(os.geteuid() != 0 or sys.platform != "linux", reason="only root may mount a small disk")
def test_a_disk_of_every_size(tmp_path, capsys):
    """A tmpfs of 2, 3, 4 ... pages, until the run fits."""
    assert train(PLAN, tmp_path / "whole") == 0
    expected, disk, pages, told = outcome(PLAN, tmp_path / "whole"), tmp_path / "disk", 1, set()
    disk.mkdir()
    while True:
        pages += 1
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={pages * resource.getpagesize()}", "tmpfs", disk], check=True)
        try:
            capsys.readouterr()
            code = train(PLAN, disk / "run")
            stderr = capsys.readouterr().err.replace("\n", "")
            if code:
                assert code == 1 and "No space left on device" in stderr, stderr[-400:]
                told.add(stderr.rpartition(": cannot be written")[0].rpartition("/")[2])
                subprocess.run(["mount", "-o", "remount,size=16m", disk], check=True)
                assert train(PLAN, disk / "run") == 0
            results = outcome(PLAN, disk / "run")
            assert {name: results[name] for name in expected} == expected
        finally:
            subprocess.run(["umount", disk], check=True)
        if not code:
            break
    print(f"{pages} sizes; what did not fit: {sorted(told)}")
    assert pages > 10 and "log.jsonl" in told


# The log ----------------------------------------------------------------------------------------------------

def _entries(path):
    return [(e["event"], e.get("update")) for e in read_log(path)]


@pytest.mark.parametrize("tail", [b'{"event": "update", "up', b'{"event": "update", "update": 16}', b"\0" * 100, b"\xff\n",
                                  b'{"event": "update", "up\n'])
def test_a_torn_line_is_removed_and_told(tail, numpy_backend, tmp_path, capsys):
    from duoln.cli.console import ProgressDisplay

    fit_into(line_trainer(numpy_backend, epochs=2), tmp_path, numpy_backend)
    whole = _entries(tmp_path)
    with (tmp_path / "log.jsonl").open("ab") as file:
        file.write(tail)
    fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend, [ProgressDisplay(())], resume=True)
    assert _entries(tmp_path)[:len(whole)] == whole
    assert [step for event, step in _entries(tmp_path) if event == "update"] == list(range(1, 16))
    assert f"removed {len(tail)} bytes of a line" in capsys.readouterr().err.replace("\n", "")
    starts = [e for e in read_log(tmp_path) if e["event"] == "start"]
    assert starts[0]["mended"] == [] and "log.jsonl" in starts[1]["mended"][0]


@pytest.mark.parametrize("seed", range(5))
def test_a_log_cut_anywhere_goes_on(seed, numpy_backend, tmp_path):
    fit_into(line_trainer(numpy_backend, epochs=1), tmp_path, numpy_backend)
    log = tmp_path / "log.jsonl"
    content = log.read_bytes()
    os.truncate(log, random.Random(seed).randrange(len(content)))
    RunFolder(tmp_path, numpy_backend).close()
    assert content.startswith(log.read_bytes()) and (log.read_bytes() or b"\n").endswith(b"\n")
    assert [json.loads(line) for line in log.read_bytes().splitlines()] == list(read_log(tmp_path))


def test_a_log_damaged_in_its_middle_is_refused_before_anything_is_trained(numpy_backend, tmp_path):
    fit_into(line_trainer(numpy_backend), tmp_path, numpy_backend)
    log = tmp_path / "log.jsonl"
    content = log.read_bytes().replace(b'"update": 3,', b'"update" 3,', 1)
    log.write_bytes(content)
    check_error(DataFormatError, lambda: RunFolder(tmp_path, numpy_backend), "log.jsonl", "a JSON object a line")
    assert log.read_bytes() == content
    log.write_bytes(b"")
    RunFolder(tmp_path, numpy_backend).close()  # the folder was let go of


def test_a_result_goes_when_the_run_goes_on(numpy_backend, tmp_path):
    fit_into(line_trainer(numpy_backend, epochs=1), tmp_path, numpy_backend)
    fit_into(line_trainer(numpy_backend, epochs=1), tmp_path, numpy_backend, resume=True)
    assert json.loads((tmp_path / "result.json").read_text())["updates"] == 5
    trainer = line_trainer(numpy_backend, epochs=2)
    trainer.task.metrics = lambda predict, split: 1 / 0
    with pytest.raises(ZeroDivisionError):
        fit_into(trainer, tmp_path, numpy_backend, resume=True)
    assert not (tmp_path / "result.json").exists()
