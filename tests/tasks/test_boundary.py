"""A task that fails in its own code gives one message with its name and exit code 1; everything else continues."""


import numpy as np
import pytest
from hostile_plugins import task as module_of

from duoln import runtime
from duoln.cli import main
from duoln.errors import DataMissingError, MemoryExhaustedError, TaskError
from duoln.examples.own_task import Spirals
from duoln.tasks import ReferenceTable, make_config
from duoln.tasks.boundary import guard_task
from duoln.tasks.contract import RESULTS
from duoln.tasks.registry import Registry
from duoln.testing import check_error, check_task
from duoln.training.trainer import Trainer

ARGS = ["run", "frail", "--preset", "smoke", "--variant", "ln", "--backend", "numpy", "--out"]


def _frail(*methods, fields="", before=""):
    """A plug-in whose task raises in these methods."""
    return module_of("\n".join(["name = 'frail'", fields, *(f"def {method}(self, *args):\n    raise ValueError('what went wrong\\nand more')" for method in methods)]), before)


@pytest.mark.parametrize("where", ["data", "loss"])
def test_one_message_names_task_distribution_method_and_line(install, tmp_path, capsys, where):
    """`test_hostile_plugins.py` has the other methods, and what the log says."""
    install("frail", _frail(where))
    assert main([*ARGS, str(tmp_path / "r")]) == 1
    captured = capsys.readouterr()
    words = " ".join(captured.err.split())
    assert f"duoln: task 'frail' of frail-dist: {where} raised ValueError: what went wrong (" in words
    assert "frail_module.py:" in words.replace(" ", "") and "Traceback" not in captured.err and "and more" not in captured.err
    assert captured.out == ""


def test_the_traceback_is_shown_if_asked_for(install, tmp_path, capsys, monkeypatch):
    install("frail", _frail("loss"))
    monkeypatch.setenv("DUOLN_TRACEBACK", "1")
    assert main([*ARGS, str(tmp_path / "r")]) == 1
    stderr = capsys.readouterr().err
    assert "Traceback" in stderr and "and more" in stderr and stderr.index("Traceback") < stderr.index("duoln: task")


def test_on_every_backend(be):
    class Frail(Spirals):
        def loss(self, model, params, batch):
            raise ValueError("what went wrong")

    task = guard_task(Frail(), "here")
    cfg = make_config(task, "ln", "smoke")
    trainer = Trainer(task, "ln", cfg, task.data(cfg), be)
    check_error(TaskError, trainer.advance, "task 'spirals' of here: loss raised ValueError: what went wrong")


def test_a_wrong_result_names_the_method_and_its_first_line():
    class Wrong(Spirals):
        def loss(self, model, params, batch):
            return 1.0

    line = Wrong.loss.__code__.co_firstlineno
    check_error(TaskError, lambda: guard_task(Wrong(), "here").loss(None, {}, {}),
                f"task 'spirals' of here: loss: expected a Tensor, found 1.0 ({__file__}:{line}); ")


def test_the_code_of_a_task_runs_on_its_own_object():
    class Counting(Spirals):
        def data(self, cfg, root=None):
            self.asked = cfg.batch_size
            return super().data(cfg, root)

    own = Counting()
    task = guard_task(own, "here")
    cfg = make_config(task, "ln", "smoke")
    task.data(cfg)
    assert own.asked == cfg.batch_size and not hasattr(task, "asked")


def test_a_named_task_is_the_same_task():
    task = guard_task(Spirals(), "here")
    assert isinstance(task, Spirals)
    check_task(task)
    cfg = make_config(task, "ln", "smoke")
    task.data(cfg)
    assert "loss" not in vars(Spirals()) and Spirals.loss is not task.loss


def test_errors_that_say_what_to_do_pass_as_they_are():
    class Frail(Spirals):
        def data(self, cfg, root=None):
            raise DataMissingError("put the file there")

        def loss(self, model, params, batch):
            raise MemoryError("no room")

    task = guard_task(Frail(), "here")
    cfg = make_config(task, "ln", "smoke")
    check_error(DataMissingError, lambda: task.data(cfg), "put the file there")
    trainer = Trainer(task, "ln", cfg, Spirals().data(cfg), runtime.backend("numpy"))
    check_error(MemoryExhaustedError, trainer.advance, "no room")


# Beside training ---------------------------------------------------------------------------------------

_SAMPLES = _frail("sample", "prepare", "peer", fields="sampling = Options", before="@dataclass(frozen=True)\nclass Options:\n    pass")


@pytest.mark.parametrize(("words", "method"), [
    (["sample", "--plugin", "frail", "RUN", "--out", "o.txt", "--backend", "numpy"], "sample"),
    (["data", "prepare", "frail", "--plugin", "frail", "--from", "RUN"], "prepare"),
    (["bench", "train", "--task", "frail", "--plugin", "frail", "--peer", "torch"], "peer")])
def test_every_command_names_the_task_that_failed(install, tmp_path, capsys, words, method):
    install("frail", _SAMPLES)
    run = str(tmp_path / "r")
    assert main([*ARGS, run]) == 0
    capsys.readouterr()
    assert main([run if word == "RUN" else word for word in words]) == 1
    stderr = " ".join(capsys.readouterr().err.split())
    assert f"duoln: task 'frail' of frail-dist: {method} raised ValueError: what went wrong (" in stderr


@pytest.mark.parametrize("words", [["sample", "RUN", "--out", "x"], ["data", "prepare", "frail", "--from", "RUN"], ["bench", "train", "--task", "frail"]])
def test_a_command_loads_the_plug_ins_that_it_is_told_to(install, tmp_path, capsys, words):
    install("frail", _SAMPLES)
    install("other", "raise SystemExit(7)")
    run = str(tmp_path / "r")
    assert main([*ARGS, run]) == 0
    words = [run if word == "RUN" else word for word in words]
    place = 1 if words[0] in ("report", "sample") else 2
    assert main([*words[:place], "--plugin", "mnist", *words[place:]]) == 2
    assert "expected one of mnist; found 'frail'" in capsys.readouterr().err


def test_pictures_that_fail_cost_no_table(install, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    install("frail", _frail("pictures"))
    assert main([*ARGS, str(tmp_path / "r")]) == 0
    capsys.readouterr()
    assert main(["report", str(tmp_path / "r"), "--out", str(tmp_path / "out"), "--html", str(tmp_path / "page.html")]) == 1
    captured = capsys.readouterr()
    text = " ".join((captured.out + captured.err).split())
    assert "pictures raised ValueError: what went wrong" in text and "test error" in text
    assert (tmp_path / "out" / "curves.csv").is_file() and (tmp_path / "page.html").is_file()


def test_report_takes_plug_ins_by_name(install, tmp_path):
    install("frail", _SAMPLES)
    assert main([*ARGS, str(tmp_path / "r")]) == 0
    assert main(["report", str(tmp_path / "r"), "--plugin", "frail"]) == 0


@pytest.mark.parametrize(("result", "words"), [
    ({}, "arrays by layer"), ({"a": [1.0]}, "floats (rows, units) as 'a'"), ({1: np.ones((2, 3))}, "name of a layer"),
    ({"a": np.ones(3)}, "floats (rows, units) as 'a'"), ({"a": np.ones((2, 3), int)}, "floats (rows, units)")])
def test_what_layers_get_is_checked(result, words):
    wrong = type("Wrong", (Spirals,), {"layer_inputs": lambda self, model, params, batch: result})()
    check_error(TaskError, lambda: guard_task(wrong, "here").layer_inputs(None, {}, {}), "layer_inputs", words)


# Tables of the paper ----------------------------------------------------------------------------------

TABLE = ReferenceTable("table 2", ("", "R@1"), [("plain", "46.6")])


def test_a_good_table_is_passed_on():
    assert RESULTS["reference_tables"]((TABLE,)) == [TABLE]


@pytest.mark.parametrize(("tables", "words"), [
    (TABLE._replace(rows=[("plain",)]), "rows of 2 cells"), (TABLE._replace(rows=[("plain", 46.6)]), "texts in a table of the paper"),
    (TABLE._replace(where=2), "texts in a table of the paper"), (("table 2",), "a list of ReferenceTable")])
def test_a_bad_table_is_told(tables, words):
    with pytest.raises(TypeError, match=words):
        RESULTS["reference_tables"]([tables] if isinstance(tables, ReferenceTable) else tables)


def test_a_task_has_none_unless_it_says_so():
    tables = {name: entry.task.reference_tables() for name, entry in Registry().tasks.items()}
    assert {name for name, of_task in tables.items() if of_task} == {"order_embeddings", "skip_thoughts"}
    assert [table.where for name in ("order_embeddings", "skip_thoughts") for table in tables[name]] == ["table 2", "table 3"]
