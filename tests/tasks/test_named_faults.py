"""A task that fails in its own code: one message that names it, exit code 1, and everything else goes on."""

import json
from textwrap import dedent

import pytest
from duoln.examples.own_task import Spirals

from duoln import runtime
from duoln.cli import main
from duoln.errors import DataMissingError, MemoryExhaustedError, TaskError
from duoln.tasks import make_config
from duoln.tasks.faults import METHODS, named
from duoln.testing import check_error, check_task
from duoln.train import Trainer

ARGS = ["run", "frail", "--preset", "smoke", "--variant", "ln", "--backend", "numpy", "--out"]


def _source(where):
    """A plug-in whose task raises in one of its methods; "batch" is data that fails once it is asked for a batch.

    A population is asked for where there is batch norm.
    """
    body = {"batch": """
        def data(self, cfg, root=None):
            splits = super().data(cfg, root)
            def train(step):
                raise ValueError("what went wrong\\nand more")
            return type(splits)(splits.dataset, train, splits.steps_per_epoch, splits.evaluation)
        """, "population": """
        def model(self, cfg):
            from duoln import nn
            return nn.Sequential(nn.BatchNorm(2), super().model(cfg))

        def population(self, *args):
            raise ValueError("what went wrong\\nand more")
        """}.get(where, f"""
        def {where}(self, *args):
            raise ValueError("what went wrong\\nand more")
        """)
    return (dedent("""
        from duoln.examples.own_task import Spirals
        from duoln.tasks import hookimpl

        class Frail(Spirals):
            name = "frail"
        """) + "\n".join(f"    {line}" for line in dedent(body).strip().splitlines())
        + "\n\n@hookimpl\ndef duoln_tasks():\n    return [Frail()]\n")


@pytest.mark.parametrize("where", [*METHODS, "batch"])
def test_one_message_names_task_distribution_method_and_line(install, tmp_path, capsys, where):
    install("frail", _source(where))
    assert main([*ARGS, str(tmp_path / "r")]) == 1
    said = capsys.readouterr()
    words = " ".join(said.err.split())
    method = "data" if where == "batch" else where
    assert f"duoln: task 'frail' of frail-dist: {method} raised ValueError: what went wrong (" in words
    assert "frail_module.py:" in words.replace(" ", "") and "Traceback" not in said.err and "and more" not in said.err
    assert said.out == ""


@pytest.mark.parametrize("where", ["batch", "loss", "predict", "metrics"])
def test_the_log_says_failed(install, tmp_path, where):
    install("frail", _source(where))
    assert main([*ARGS, str(tmp_path / "r")]) == 1
    last = json.loads((tmp_path / "r" / "ln" / "log.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["status"]) == ("end", "failed")


def test_the_traceback_is_shown_if_asked_for(install, tmp_path, capsys, monkeypatch):
    install("frail", _source("loss"))
    monkeypatch.setenv("DUOLN_TRACEBACK", "1")
    assert main([*ARGS, str(tmp_path / "r")]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said and "and more" in said and said.index("Traceback") < said.index("duoln: task")


def test_other_tasks_go_on(install, tmp_path, capsys):
    install("frail", _source("data"))
    assert main(["list"]) == 0 and main(["doctor"]) == 0
    assert main(["run", "mnist", *ARGS[2:], str(tmp_path / "r")]) == 0


def test_on_every_backend(be):
    class Frail(Spirals):
        def loss(self, model, params, batch):
            raise ValueError("what went wrong")

    task = named(Frail(), "here")
    cfg = make_config(task, "ln", "smoke")
    trainer = Trainer(task, "ln", cfg, task.data(cfg), be)
    check_error(TaskError, trainer.advance, "task 'spirals' of here: loss raised ValueError: what went wrong")


def test_a_named_task_is_the_same_task():
    task = named(Spirals(), "here")
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

    task = named(Frail(), "here")
    cfg = make_config(task, "ln", "smoke")
    check_error(DataMissingError, lambda: task.data(cfg), "put the file there")
    trainer = Trainer(task, "ln", cfg, Spirals().data(cfg), runtime.backend("numpy"))
    check_error(MemoryExhaustedError, trainer.advance, "no room")
