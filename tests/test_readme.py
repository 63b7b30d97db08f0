"""The Python of the READMEs runs, and what they name exists."""

import re
import shlex
from pathlib import Path

import pytest
from test_architecture import LAYERS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / ".github/CONTRIBUTING.md").read_text()
FILES = sorted(path.relative_to(ROOT).as_posix() for path in
               (ROOT / "README.md", ROOT / ".github/CONTRIBUTING.md", *(p for top in ("duoln", "kernels", "plugins", "examples")
                                                                        for p in (ROOT / top).rglob("*.md"))))
"""The README, and those of the rooms that have one."""


def run_python_of(file):
    """Run a file's blocks of Python in order, in one namespace, and give it."""
    namespace = {"__name__": "readme"}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / file).read_text(), re.DOTALL):
        exec(compile(block, file, "exec"), namespace)
    return namespace


def test_it_is_short():
    assert len(README.splitlines()) <= 250


def test_the_python_of_the_readme_runs_in_order():
    assert len(re.findall("```python\n", README)) >= 5
    values = run_python_of("README.md")
    assert values["value"].item() < 0.1, "the training loop learns"
    assert values["outputs"].shape == (5, 3, 32) and len(values["states"]) == 4
    assert values["run"].figures["test_error"] < 0.9


@pytest.mark.parametrize("file", [file for file in FILES if file != "README.md"])
def test_the_python_of_the_rooms_runs(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # some of it writes files
    run_python_of(file)


def test_the_task_that_samples_evaluates_and_draws(tmp_path):
    from duoln import tasks, testing, train
    from duoln.pictures.drawing import can_draw

    values = run_python_of("duoln/docs/tasks.md")
    task, options = values["Map"](), values["Points"](40)
    run = train(task, variant="ln", preset="smoke", backend="numpy")
    trained = tasks.Trained(run.config, run.variant, 1, run.model, run.params)
    [sample] = task.sample(trained, options, tmp_path / "map.csv")
    assert len(sample.read_text().splitlines()) == 41
    findings = task.evaluate(trained, options, print)
    assert 0 <= findings.figures["share"] <= 1 and len(findings.rows[0]) == len(findings.headings)
    if can_draw():
        assert [path.is_file() for path in task.pictures({"a": trained, "b": trained}, tmp_path)] == [True]
    testing.check_task(task, gradients=False, agreement=False)


def test_the_loss_that_needs_a_setting():
    from duoln import to_tensors, value_and_grad
    from duoln.tasks.settings import make_config

    task = run_python_of("duoln/docs/tasks.md")["Weighted"]()
    losses = []
    for weight in (1.0, 3.0):
        cfg = make_config(task, "ln", "smoke", {"weight": weight})
        model, batch = task.model(cfg), task.data(cfg).train(0)
        value, _ = value_and_grad(lambda p, b, model=model: task.loss(model, p, b))(to_tensors(model.init(0)), to_tensors(batch))
        losses.append(value.item())
    assert losses[1] == pytest.approx(3 * losses[0])


def test_the_set_up_lines():
    assert "pip install . && python -m duoln.examples.mnist\npip install -e \".[test]\" && pytest -n auto --dist loadfile\n" in README
    script = (ROOT / ".ci" / "run").read_text()
    assert 'pip install -q -e ".[test]"' in script and "\npytest -n auto --dist loadfile" in script


def test_the_reference_is_written_as_told():
    assert 'pip install -e ".[docs]" && python .ci/reference.py ' in CONTRIBUTING
    script = (ROOT / ".ci" / "run").read_text()
    assert 'pip install -q -e ".[docs]"\npython .ci/reference.py ' in script


@pytest.mark.parametrize("file", FILES)
def test_linked_files_exist(file):
    prose = re.sub(r"^ *```.*?^ *```$", "", (ROOT / file).read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = re.findall(r"\]\((?!http)([^)]+)\)", prose)
    assert file != "README.md" or len(targets) >= 3
    for target in targets:
        assert ((ROOT / file).parent / target).exists(), target


@pytest.mark.parametrize("file", FILES)
def test_commands_parse(file):
    from duoln.cli import build_parser

    shell = "".join(re.findall(r"```sh\n(.*?)```", (ROOT / file).read_text(), re.DOTALL)).replace("\\\n", " ")
    lines = re.findall(r"^duoln (.*?)(?:\s+#.*)?$", shell, re.MULTILINE)
    assert file != "README.md" or len(lines) >= 4
    for line in lines:
        build_parser().parse_args(shlex.split(line.replace("[--json]", "--json")))


@pytest.mark.parametrize("file", FILES)
def test_tests_that_are_named_exist(file):
    for name in re.findall(r"`(tests/[\w/.]+)", (ROOT / file).read_text()):
        assert (ROOT / name).exists(), name


def test_the_layers_are_those_that_are_tested():
    [page] = re.findall(r"## Architecture\n\n```\n(.*?)```", CONTRIBUTING, re.DOTALL)
    told = [tuple(re.split(r" {3,}", line)[0].split()) for line in page.splitlines()]
    assert told == list(reversed(LAYERS))


def test_variables_are_the_ones_that_the_code_reads():
    source = "".join(p.read_text() for folder in ("duoln", "kernels", "plugins", "tests")
                     for p in (ROOT / folder).rglob("*.py"))
    rows = re.findall(r"^\| (`[A-Z_]+\b[^|]*) \|", README, re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`([A-Z_]+)", row)}
    own = set(re.findall(r'"(DUOLN_[A-Z_]+)"', source))
    assert "OPENBLAS_CORETYPE" in told and len(own) > 10
    for name in told:
        assert f'"{name}"' in source, name
    assert sorted(own - told) == []
