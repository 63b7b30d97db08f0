"""Every reader reads damaged files: it gives a result or an error of the right class, and has no other effect.

Some hundred cases a reader by default, 200 times as many with --long (`pytest -rP` shows the counts). Of the formats
there are IDX, gzip, npz (which is zip), npy, tar, text, XML, safetensors, JSON, JSONL, RIFF and NIST SPHERE; duoln reads
no zip but npz. FLAC is soundfile's.
"""

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import bombs
import hostile_readers
import numpy as np
import pytest

from duoln.data.text import read_books
from duoln.errors import CheckpointError, DataFormatError
from duoln.plugins.draw import corpus as images
from duoln.plugins.handwriting import corpus
from duoln.runs import checkpoint, curves, folder, log
from duoln.runs.tensor_file import sealed
from duoln.testing import check_error

CASES = 300
LONG = 200


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory):
    """The outcomes of each reader, from one process with limited memory."""
    cases = CASES * (LONG if request.config.getoption("--long") else 1)
    here = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parents[1]), str(here)]), "OMP_NUM_THREADS": "1",
           "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-W", "error", here / "hostile_readers.py", str(cases), tmp_path_factory.mktemp("hostile")],
                          capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return {row.pop("reader"): row for row in map(json.loads, done.stdout.splitlines())}


@pytest.mark.long
@pytest.mark.parametrize("name", hostile_readers.READERS)
def test_a_damaged_file_is_refused_or_read(outcomes, name):
    outcome = outcomes[name]
    print(f"{name}: {outcome['cases']} cases, {outcome['refused']} refused, {outcome['read']} read, "
          f"slowest {outcome['slowest_cpu_s']} s")
    assert outcome["wrongs"] == 0, "\n".join(f"case {n}: {what}\n{seen}" for n, what, seen in outcome["wrong"])
    assert outcome["strays"] == [] and outcome["slowest_cpu_s"] < 5
    if hostile_readers.READERS[name].allowed:
        assert outcome["refused"] > outcome["cases"] // 20 and outcome["read"] > 0  # some is refused, some is not


# What the fuzzer found --------------------------------------------------------------------------------

DEEP = b"[" * 100_000


@pytest.mark.parametrize("content", [b"\xff\n{}\n", b'{"a": "\xed\xa0\x80"}\n{}\n', DEEP + b"\n{}\n"])
def test_a_log_that_is_no_text_or_too_deep(tmp_path, content):
    (tmp_path / "log.jsonl").write_bytes(content)
    check_error(DataFormatError, lambda: list(log.read_log(tmp_path)), "log.jsonl", "at byte 0", "a JSON object a line")


def test_a_config_that_is_too_deep(tmp_path):
    (tmp_path / "config.json").write_bytes(DEEP)
    check_error(DataFormatError, lambda: folder.read_json(tmp_path / "config.json"), "nested too deeply")


@pytest.mark.parametrize(("notes", "words"), [
    ('{"format": 1, "update": Infinity}', ["update", "inf"]), ('{"format": 1, "update": -1}', ["update 1", "-1"]),
    (DEEP.decode(), ["nested too deeply"]), ('{"format": 1}', ["KeyError", "update"])])
def test_notes_of_a_checkpoint(tmp_path, notes, words):
    path = tmp_path / "update-000000001.safetensors"
    path.write_bytes(hostile_readers.safetensors.numpy.save({}, {"duoln": sealed(notes, {})}))
    check_error(CheckpointError, lambda: checkpoint.load(path), str(path), *words)


@pytest.mark.parametrize(("file", "content", "words"), [
    ("config.json", b"{}", ["a text as task", "None"]),
    ("config.json", b'{"task": "t", "variant": "v", "config": {"batch_size": "x"}}', ["batch_size", "'x'"]),
    ("log.jsonl", b'{"event": "start", "dataset": {"name": "a"}}', ["entry 1", "dataset"]),
    ("log.jsonl", b'{"event": "update", "loss": 1.0}', ["entry 1", "a whole number as update"]),
    ("log.jsonl", b'{"event": "evaluation", "update": 1, "epoch": 1}', ["entry 1", "a number as wall_s"]),
    ("log.jsonl", b'{}\n{"event": "update", "update": 1, "loss": "low"}', ["entry 2", "a number as loss", "'low'"])])
def test_a_run_that_lacks_what_curves_are_made_of(tmp_path, file, content, words):
    for name, whole in (("config.json", hostile_readers._CONFIG), ("log.jsonl", hostile_readers._LOG)):
        (tmp_path / name).write_bytes(content if name == file else whole)
    check_error(DataFormatError, lambda: curves.read_curves([tmp_path]), file, *words)


@pytest.mark.parametrize(("read", "make"), [
    (corpus.read_lines, lambda: hostile_readers._npz(np.savez, **hostile_readers._lines(1))),
    (images.read_packed, lambda: hostile_readers._packed(1))])
def test_a_member_whose_name_is_no_text(tmp_path, read, make):
    whole = make()
    at = whole.index(b"PK\3\4")
    damaged = bytearray(whole)
    damaged[at + 7] |= 8  # says that its name is in UTF-8
    damaged[at + 31] = 0xC9
    (tmp_path / "a.npz").write_bytes(damaged)
    check_error(DataFormatError, lambda: read(tmp_path / "a.npz"), "an undamaged")


def test_an_array_of_python_2(tmp_path):
    content = hostile_readers._npz(np.savez, **hostile_readers._lines(1))
    (tmp_path / "a.npz").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["dx.npy"] = members["dx.npy"].replace(b"(9,), ", b"(9L,),")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    check_error(DataFormatError, lambda: corpus.read_lines(tmp_path / "a.npz"), "dx", "an npy header", "Python 2")


@pytest.mark.parametrize("header", [b"{'descr': ((", b"{'descr': '<U4' 'x", b"(" * 200, b"1", b"{'descr': {}}"])
def test_an_array_whose_header_is_no_header(tmp_path, header):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("dx.npy", b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header)
    (tmp_path / "a.npz").write_bytes(content.getvalue())
    check_error(DataFormatError, lambda: corpus.read_lines(tmp_path / "a.npz"), "dx", "an npy header")


def test_a_text_of_no_characters(tmp_path):
    content = np.array(["ab"])
    whole = hostile_readers._npz(np.savez, **{**hostile_readers._lines(1), "text": content})
    points = content.tobytes()
    (tmp_path / "a.npz").write_bytes(_with_member(whole, "text.npy", points, points[:4] + b"\0\0\x11\0"))
    check_error(DataFormatError, lambda: corpus.read_lines(tmp_path / "a.npz"), "text", "characters of Unicode", "1114112")


def _with_member(whole, name, old, new):
    """An archive with some bytes of a member replaced, and right checksums."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as archive, zipfile.ZipFile(result, "w") as made:
        for member in archive.namelist():
            content = archive.read(member)
            made.writestr(member, content.replace(old, new) if member == name else content)
    return result.getvalue()


def test_a_word_without_end_takes_no_time_to_speak_of(tmp_path):
    import time

    from duoln.plugins.skip_thoughts import corpus as books

    (tmp_path / "b.txt").write_bytes(b"The cat " + b"9" * 200_000 + b" sat.\n")
    started = time.process_time()
    books.make_corpus("b", read_books(tmp_path / "b.txt", 1 << 20), True)
    assert time.process_time() - started < 5


def test_a_config_without_a_variant(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"task": "mnist", "config": {}}))
    check_error(DataFormatError, lambda: hostile_readers.hostile_runs.read_model(tmp_path / "config.json"), "a text as variant", "None")


# Bombs ------------------------------------------------------------------------------------------------

MOST_MIB = 700
"""The interpreter, NumPy and the plug-ins take 240 of them."""
PARTS = 8
"""Processes, each of which reads every eighth bomb."""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of the peak of a process's memory")
@pytest.mark.parametrize("part", [0, *(pytest.param(k, marks=pytest.mark.long) for k in range(1, PARTS))])
def test_bombs_are_refused_or_read_within_the_bound(part, tmp_path):
    here = Path(__file__).parent
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(here.parents[1]), str(here)]), "OMP_NUM_THREADS": "1",
           "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, here / "bombs.py", tmp_path, str(part), str(PARTS)], env=env, capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(bombs.BOMBS[part::PARTS])
    assert [row for row in rows if row["outcome"] not in ("refused", "read") or row["peak_mib"] > MOST_MIB] == []
