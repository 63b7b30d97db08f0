"""Links and pipes at the names of a run folder: nothing behind a link is changed, and no pipe is waited for."""

import os
from pathlib import Path

import pytest
from small_runs import Line, fit_into, line_trainer

from duoln.cli.run import run_task
from duoln.errors import CheckpointError, DataFormatError
from duoln.runs import checkpoint
from duoln.runs.folder import RunFolder, read_json
from duoln.runs.log import read_log
from duoln.testing import check_error

NAMES = ("plain/lock", "plain/log.jsonl", "plain/config.json", "plain/result.json", "plain/checkpoints",
         "plain/checkpoints/update-000000005.safetensors",
         "curves.csv", "curves.png", "norm_stats.csv", "norm_stats.png")
PARTS = ("plain/config.json.0a1b2c3d.part", "plain/result.json.0a1b2c3d.part", "plain/checkpoints/update-000000005.safetensors.0a1b2c3d.part",
         "plain/checkpoints/update-000000123.safetensors.0a1b2c3d.part", "curves.csv.0a1b2c3d.part")
CONTENT = b"precious\n"


@pytest.fixture
def victim(tmp_path):
    file = tmp_path / "victim"
    file.write_bytes(CONTENT)
    return file


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch):
    monkeypatch.setattr("duoln.pictures.drawing.refusal", lambda: "pip install matplotlib")


def _plant(top, name, make):
    (top / name).parent.mkdir(parents=True)
    make(top / name)


def _run(top):
    return run_task(Line, ["--out", str(top), "--backend", "numpy", "--resume", "auto", "--epochs", "1"], preset="smoke")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["link", "dangling link", "named pipe"])
def test_what_is_no_file_is_refused(name, kind, tmp_path, victim, capsys):
    top, absent = tmp_path / "top", tmp_path / "absent"
    target = absent if kind == "dangling link" else victim
    _plant(top, name, os.mkfifo if kind == "named pipe" else lambda path: path.symlink_to(target))
    assert _run(top) == 1
    stderr = capsys.readouterr().err.replace("\n", "")
    assert Path(name).name in stderr and f"found {'a named pipe' if kind == 'named pipe' else 'a symbolic link'}" in stderr
    assert victim.read_bytes() == CONTENT and not absent.exists()


@pytest.mark.few
@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("kind", ["link", "named pipe", "hard link"])
def test_what_is_at_the_name_of_an_unfinished_file_is_removed_and_not_written_to(name, kind, tmp_path, victim):
    top = tmp_path / "top"
    _plant(top, name, {"link": lambda path: path.symlink_to(victim), "named pipe": os.mkfifo,
                       "hard link": lambda path: path.hardlink_to(victim)}[kind])
    assert _run(top) == 0 and victim.read_bytes() == CONTENT and not list(top.rglob("*.part"))


@pytest.mark.parametrize("name", ["plain/lock", "plain/log.jsonl"])
def test_a_file_with_another_name_is_not_written_in_place(name, tmp_path, victim, capsys):
    top = tmp_path / "top"
    _plant(top, name, lambda path: path.hardlink_to(victim))
    assert _run(top) == 1 and victim.read_bytes() == CONTENT
    assert "found 2 hard links to it" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize("name", ["config.json", "result.json", "checkpoints/update-000000005.safetensors"])
def test_a_file_with_another_name_is_replaced(name, tmp_path, victim, numpy_backend):
    fit_into(line_trainer(numpy_backend, epochs=1), tmp_path / "run", numpy_backend)
    (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / name).hardlink_to(victim)
    fit_into(line_trainer(numpy_backend, epochs=1), tmp_path / "run", numpy_backend, resume=True)
    assert victim.read_bytes() == CONTENT


def test_a_run_folder_may_be_a_link(tmp_path, numpy_backend):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    fit_into(line_trainer(numpy_backend), tmp_path / "run", numpy_backend)
    assert (tmp_path / "disk" / "result.json").exists()


def test_a_picture_is_not_written_through_a_link(tmp_path, victim, monkeypatch):
    from duoln.system.filesystem import write_own

    (tmp_path / "curves.png").symlink_to(victim)
    check_error(CheckpointError, lambda: write_own(tmp_path / "curves.png", b"x"), "curves.png", "a symbolic link")
    assert victim.read_bytes() == CONTENT


@pytest.mark.parametrize("read", [
    lambda p: list(read_log(p)), lambda p: read_json(p / "log.jsonl"), lambda p: checkpoint.load(p / "log.jsonl")])
def test_a_named_pipe_is_not_waited_for(read, tmp_path):
    os.mkfifo(tmp_path / "log.jsonl")
    check_error((CheckpointError, DataFormatError), lambda: read(tmp_path), "log.jsonl", "found a named pipe")


def test_what_was_published_with_links_can_be_read(tmp_path, numpy_backend):
    """Installers may link files, so a link is an error only for a file that is written."""
    fit_into(line_trainer(numpy_backend), tmp_path / "run", numpy_backend)
    (tmp_path / "linked").mkdir()
    for name in ("log.jsonl", "config.json"):
        (tmp_path / "linked" / name).symlink_to(tmp_path / "run" / name)
    assert list(read_log(tmp_path / "linked")) == list(read_log(tmp_path / "run"))
    assert read_json(tmp_path / "linked" / "config.json")["variant"] == "plain"
    check_error(CheckpointError, lambda: RunFolder(tmp_path / "linked", numpy_backend), "a symbolic link")
