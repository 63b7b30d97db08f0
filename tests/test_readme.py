"""What the README shows is so. `test_docs.py` is about all Markdown."""

import re

import pytest
from readme_tables import ROOT, pages, renewed
from test_docs import run_python_of

README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / ".github/CONTRIBUTING.md").read_text()


def test_the_python_of_the_readme_runs_in_order(capsys):
    assert len(re.findall("```python\n", README)) == 2
    values = run_python_of("README.md")
    assert values["value"].item() < 0.2, "the training loop learns"
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [f"update {k}" for k in (0, 100, 200, 300)]
    assert values["outputs"].shape == (5, 3, 32) and len(values["states"]) == 4


def test_the_task_that_samples_evaluates_and_draws(tmp_path):
    from duoln import tasks, testing
    from duoln.pictures.drawing import can_draw

    values = run_python_of("duoln/docs/tasks.md")
    task, options = values["Map"](), values["Points"](40)
    run = tasks.train(task, variant="ln", preset="smoke", backend="numpy")
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


def test_variables_are_the_ones_that_the_code_reads():
    source = "".join(p.read_text() for folder in ("duoln", "kernels", "plugins", "tests")
                     for p in (ROOT / folder).rglob("*.py"))
    page = (ROOT / "duoln/docs/runs.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([A-Z_]+)(?:=[^`|]*)?` \|", page, re.MULTILINE)
    told = set(rows)
    own = set(re.findall(r'"(DUOLN_[A-Z_]+)"', source))
    assert "OPENBLAS_CORETYPE" in told and len(own) > 10 and len(rows) == len(told), "one row each"
    for name in told:
        assert f'"{name}"' in source, name
    assert sorted(own - told) == []


@pytest.mark.parametrize("page", list(pages()), ids=lambda path: str(path.relative_to(ROOT / "plugins")))
def test_tables_are_those_of_the_kept_runs(page):
    assert renewed(page) == page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", list(pages()), ids=lambda path: str(path.relative_to(ROOT / "plugins")))
def test_a_page_is_short(page):
    assert len(page.read_text(encoding="utf-8").split()) <= {"README.md": 300, "RESULTS.md": 520}[page.name]


def test_the_kept_runs_are_small():
    files = [path for path in (ROOT / "plugins").glob("*/results/*/*/*") if path.is_file()]
    assert {path.name for path in files} <= {"config.json", "result.json", "curves.csv", "evaluation.json"}
    assert sum(path.stat().st_size for path in files) < 12e6
