"""A resumed run takes its settings from its folder; what contradicts them is refused."""

import json
import shutil
from types import SimpleNamespace

import pytest
from small_runs import Line

import duoln
from duoln.cli import main
from duoln.cli.run import run_task
from duoln.errors import UsageError
from duoln.testing import check_error

SMOKE = ("run", "mnist", "--preset", "smoke", "--set", "rows=400", "--set", "hidden=8", "--backend", "numpy")
RESUME = ("run", "mnist", "--resume", "auto", "--backend", "numpy")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A run of one variant with settings that are not the task's own."""
    out = tmp_path_factory.mktemp("runs") / "a"
    assert main([*SMOKE, "--variant", "ln", "--out", str(out)]) == 0
    return out


@pytest.fixture
def begun(tmp_path, original):
    out = shutil.copytree(original, tmp_path / "a")
    return SimpleNamespace(out=out, run=lambda *words: main([*RESUME, "--out", str(out), *words]),
                           config=lambda variant="ln": json.loads((out / variant / "config.json").read_text())["config"])


@pytest.mark.long
def test_without_settings_a_run_goes_on_with_its_own(begun, capsys):
    before = begun.config()
    assert before["hidden"] == 8 and before["epochs"] == 1
    assert begun.run() == 0
    assert begun.config() == before and {p.name for p in begun.out.iterdir() if p.is_dir()} == {"ln"}
    assert begun.run("--epochs", "2") == 0
    assert begun.config() == {**before, "epochs": 2} and "ln: epochs was 1, and is 2" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "key", "asked", "has"), [
    (["--set", "hidden=16"], "hidden", "16", "8"), (["--batch-size", "64"], "batch_size", "64", "128"),
    (["--seed", "1"], "seed", "1", "0"), (["--set", "rows=none"], "rows", "none", "400"),
    (["--preset", "smoke"], "hidden", "64", "8")])
def test_a_setting_that_contradicts_is_refused_with_both_values(begun, capsys, words, key, asked, has):
    before = begun.config()
    assert begun.run(*words) == 2
    stderr = capsys.readouterr().err
    assert f"{key} {asked} where it has {has}" in stderr and "config.json" in stderr and "--out" in stderr
    assert begun.config() == before


@pytest.mark.long
def test_settings_that_agree_pass(begun):
    assert begun.run("--preset", "smoke", "--set", "hidden=8", "--set", "rows=400", "--variant", "ln") == 0


@pytest.mark.long
def test_a_variant_that_was_not_begun_gets_the_commands_settings(begun):
    assert begun.run("--variant", "none") == 0
    assert begun.config("none") == {**begun.config(), "norm": "none"}
    assert json.loads((begun.out / "none" / "command.json").read_text())["settings"] == {"rows": "400", "hidden": "8"}


@pytest.mark.long
def test_a_later_command_leaves_what_an_earlier_one_asked_for(begun):
    before = (begun.out / "ln" / "command.json").read_text()
    (begun.out / "ln" / "config.json").unlink()  # as if it had not begun
    shutil.rmtree(begun.out / "ln" / "checkpoints")
    assert main([*SMOKE, "--variant", "none", "--epochs", "2", "--out", str(begun.out)]) == 0
    assert (begun.out / "ln" / "command.json").read_text() == before
    assert begun.run() == 0
    assert begun.config()["epochs"] == 1 and begun.config("none")["epochs"] == 2


@pytest.mark.long
def test_a_programs_usual_preset_contradicts_nothing(tmp_path):
    line = ["--backend", "numpy", "--out", str(tmp_path)]
    assert run_task(Line, [*line, "--batch-size", "4", "--epochs", "2"], preset="smoke") == 0
    assert run_task(Line, [*line, "--resume", "auto"], preset="smoke") == 0
    config = json.loads((tmp_path / "plain" / "config.json").read_text())["config"]
    assert (config["batch_size"], config["epochs"]) == (4, 2)


def test_a_run_from_python(tmp_path, numpy_backend):
    first = duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path, batch_size=4)
    again = duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path, resume=True, epochs=4)
    assert again.config.batch_size == 4 and again.figures["updates"] == first.figures["updates"] // 3 * 4
    check_error(UsageError, lambda: duoln.tasks.train(Line(), "plain", backend=numpy_backend, out=tmp_path, resume=True, batch_size=8),
                "[line plain]", "batch_size 8 where it has 4")
    check_error(UsageError, lambda: duoln.tasks.train(Line(), "fast", backend=numpy_backend, out=tmp_path, resume=True),
                "'fast'", "'plain'")
