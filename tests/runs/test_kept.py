"""What is kept of a run: its files, what is read from them again, and what `duoln keep` refuses and replaces."""

import json
import shutil

import pytest

from duoln.cli import main
from duoln.errors import CheckpointError, DataFormatError
from duoln.runs import commit, kept
from duoln.runs.curves import read_curves
from duoln.tasks.registry import find_task
from duoln.testing import check_error


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Smoke runs of two variants with two seeds."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUOLN_OFFLINE", "1")
        for seed in (0, 1):
            assert main(["run", "mnist", "--preset", "smoke", "--variant", "none,ln", "--seed", str(seed), "--backend", "numpy",
                         "--out", str(folder / str(seed))]) == 0
    return folder


@pytest.mark.long
def test_a_kept_run_is_read_as_the_run_was(made, tmp_path):
    [run] = read_curves([made / "0" / "ln"])
    paths = kept.keep(run, tmp_path / "ln")
    assert sorted(path.name for path in (tmp_path / "ln").iterdir()) == ["config.json", "curves.csv", "result.json"]
    assert {path.parent for path in paths} == {tmp_path / "ln"}
    [again] = read_curves([tmp_path / "ln"])
    assert again[1:6] == run[1:6] and again.result == run.result
    assert again.starts[0]["time"] == run.starts[0]["time"] and "argv" not in again.starts[0]
    assert again.starts[0]["git"] == commit.git() and "device" in again.starts[0]["backend"] and again.points[-1]["wall_s"] > 0
    assert [step for step, _ in again.losses] == [step for step, _ in run.losses]
    assert [loss for _, loss in again.losses] == pytest.approx([loss for _, loss in run.losses], rel=1e-5)


def test_many_losses_become_the_means_of_parts(made, tmp_path):
    [run] = read_curves([made / "0" / "ln"])
    kept.keep(run._replace(losses=[(k, float(k)) for k in range(1, 1001)]), tmp_path / "ln")
    [again] = read_curves([tmp_path / "ln"])
    assert again.losses == [(5 * k, 5 * k - 2.0) for k in range(1, 201)]


def test_values_that_are_not_finite_are_kept(made, tmp_path):
    [run] = read_curves([made / "0" / "ln"])
    points = [{**run.points[0], "test_error": float("nan"), "test_nll": float("inf")}]
    kept.keep(run._replace(points=points), tmp_path / "ln")
    [point] = read_curves([tmp_path / "ln"])[0].points
    assert str(point["test_error"]) == "nan" and point["test_nll"] == float("inf")


def test_a_run_that_has_not_ended_is_refused(made, tmp_path):
    [run] = read_curves([made / "0" / "ln"])
    with pytest.raises(CheckpointError, match=r"expected a run that has ended, found one at update \d+; resume it"):
        kept.keep(run._replace(result={}), tmp_path / "ln")
    assert not (tmp_path / "ln").exists()


@pytest.mark.parametrize(("name", "damage", "words"), [
    ("curves.csv", lambda text: text.replace("\n1,", "\none,", 1), "numbers in line 2"),
    ("curves.csv", lambda text: "update,epoch\n3,1\n", "a number as wall_s"),
    ("curves.csv", lambda text: text.replace("update,", "step,", 1), "line 2.*expected a whole number as update.*'step': 1"),
    ("result.json", lambda text: text.replace('"starts"', '"begins"'), "a list of objects as starts"),
    ("result.json", lambda text: text.replace('"dataset"', '"data"'), "as dataset"),
    ("config.json", lambda text: text.replace('"variant"', '"kind"'), "a text as variant")])
def test_damaged_files_are_named(name, damage, words, made, tmp_path):
    kept.keep(read_curves([made / "0" / "ln"])[0], tmp_path / "ln")
    file = tmp_path / "ln" / name
    assert damage(file.read_text()) != file.read_text()
    file.write_text(damage(file.read_text()))
    with pytest.raises(DataFormatError, match=words) as caught:
        read_curves([tmp_path / "ln"])
    assert name in str(caught.value)


def test_the_home_of_a_task_is_beside_its_code():
    assert kept.kept_folder(find_task("mnist")).parts[-2:] == ("mnist", "results")


# The command ------------------------------------------------------------------------------------------------

def _keep(made, to, *runs, name="short", options=()):
    return main(["keep", *(str(made / run) for run in runs), "--as", name, "--to", str(to), *options])


def _folders(to, name="short"):
    return sorted(path.name for path in (to / name).iterdir())


def test_runs_of_one_seed_are_called_as_their_variants(made, tmp_path, capsys):
    assert _keep(made, tmp_path, "0", options=["--json"]) == 0
    assert _folders(tmp_path) == ["ln", "none"]
    out = json.loads(capsys.readouterr().out)
    assert out == {"task": "mnist", "kept": [str(tmp_path / "short" / name) for name in ("ln", "none")]}


def test_several_seeds_are_told_apart_and_replace_what_was_kept_under_the_name(made, tmp_path, capsys):
    assert _keep(made, tmp_path, "0") == 0
    assert _keep(made, tmp_path, "0", "1") == 0
    assert _folders(tmp_path) == ["ln-seed0", "ln-seed1", "none-seed0", "none-seed1"]
    assert "removed" in capsys.readouterr().err


def test_another_tasks_results_are_not_replaced(made, tmp_path, capsys):
    assert _keep(made, tmp_path, "0") == 0
    config = next(tmp_path.glob("short/*/config.json"))
    config.write_text(config.read_text().replace('"task": "', '"task": "un'))
    before = config.read_text()
    assert _keep(made, tmp_path, "0") == 2
    assert "found some of un" in capsys.readouterr().err and config.read_text() == before


def test_a_folder_that_is_no_kept_run_stays(made, tmp_path):
    shutil.copytree(made / "0" / "ln", tmp_path / "short" / "mine")
    assert _keep(made, tmp_path, "0") == 0
    assert _folders(tmp_path) == ["ln", "mine", "none"]


def test_what_cannot_be_kept_is_refused_before_anything_is_written(made, tmp_path, capsys):
    shutil.copytree(made / "0" / "ln", tmp_path / "copy")
    assert main(["keep", str(made / "0" / "ln"), str(tmp_path / "copy"), "--as", "a", "--to", str(tmp_path)]) == 2
    assert "expected runs of different settings" in capsys.readouterr().err
    assert _keep(made, tmp_path, "0", name="../up") == 2
    assert "--as: expected the name of one folder, found '../up'" in capsys.readouterr().err
    assert main(["keep", str(tmp_path / "none"), "--as", "a"]) == 1
    assert "found nothing there" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("place", ["lib/python3.12/site-packages/tasks", "dist-packages/tasks", "tasks.zip/tasks"])
def test_an_installed_package_gets_no_results(place, made, tmp_path, monkeypatch, capsys):
    (tmp_path / "tasks.zip").write_bytes(b"")
    home = tmp_path / place / "results"
    if "zip" not in place:
        home.parent.mkdir(parents=True)
    monkeypatch.setattr(kept, "kept_folder", lambda task: home)
    assert main(["keep", str(made / "0" / "ln"), "--as", "short"]) == 2
    error = capsys.readouterr().err
    assert f"beside the code of mnist, found {home.parent}" in error and "--to DIR" in error and not home.exists()
    assert main(["keep", str(made / "0" / "ln"), "--as", "short", "--to", str(tmp_path / "to")]) == 0


def test_results_are_made_beside_code_that_is_edited(made, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "kept_folder", lambda task: tmp_path / "results")
    assert main(["keep", str(made / "0" / "ln"), "--as", "short"]) == 0
    assert _folders(tmp_path / "results") == ["ln"]


@pytest.mark.long
def test_a_task_that_draws_its_models_draws_none_of_kept_runs(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["run", "las", "--preset", "smoke", "--variant", "none", "--epochs", "1", "--backend", "numpy",
                 "--out", str(tmp_path / "run")]) == 0
    assert main(["keep", str(tmp_path / "run"), "--as", "one", "--to", str(tmp_path)]) == 0
    assert main(["report", str(tmp_path / "one"), "--out", str(tmp_path / "out")]) == 0
    assert "is kept without its checkpoints" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["curves.csv", "curves.png"]


def test_report_and_paper_read_kept_runs(made, tmp_path, capsys):
    assert _keep(made, tmp_path, "0", "1") == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path / "short"), "--by", "seed", "--markdown"]) == 0
    header, line, *rows = capsys.readouterr().out.splitlines()
    assert header.startswith("| variant | seeds | batch | epochs |") and set(line) <= set("| -")
    assert [row.split(" | ")[:2] for row in rows] == [["| `none`", "2"], ["| `ln`", "2"]] and "(" in rows[0]
    assert main(["paper", "--runs", str(tmp_path), "--json"]) == 0
    figure = next(s for s in json.loads(capsys.readouterr().out)["paper"] if s["where"] == "figure 6")
    assert "no run" not in figure["open"]


def test_a_field_that_is_too_long_is_an_error_of_the_file(made, tmp_path):
    [run] = read_curves([made / "0" / "ln"])
    kept.keep(run, tmp_path / "ln")
    with (tmp_path / "ln" / "curves.csv").open("a") as file:
        file.write("1" * 200_000 + "\n")
    check_error(DataFormatError, lambda: read_curves([tmp_path / "ln"]), "curves.csv", "a table of curves", "field larger than field limit")
