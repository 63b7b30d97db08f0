"""`duoln help`: pages, the list of them, and the search for words and public names."""

import importlib
import inspect
import pydoc
import re

import pytest
from rich.console import Console

import duoln
from duoln.cli import console, help, main
from duoln.cli.help import MODULES, public_names


@pytest.fixture
def told(capsys):
    def run(*words):
        code = main(["help", *words])
        output = capsys.readouterr()
        return code, output.out, output.err
    return run


def test_alone_it_lists_every_page_with_its_first_sentence(told):
    code, out, _ = told()
    lines = out.splitlines()
    assert code == 0 and [line.split()[0] for line in lines[:-2]] == [*help.topics()]
    assert lines[0].startswith("README ") and "Documentation: The pages of duoln" in lines[0]
    assert all(re.fullmatch(r"\w+ +[A-Z].*: \S.*[.]", line) for line in lines[:-2]), "a title, and a whole sentence"


@pytest.mark.parametrize("topic", help.topics())
def test_a_page_in_a_pipe_is_its_text(topic, told):
    code, out, _ = told(topic)
    assert code == 0 and out.splitlines()[0] == help.page(topic).splitlines()[0]
    assert not re.search(r"\]\((?!http)", re.sub(r"```.*?```", "", out, flags=re.DOTALL)), "a link that nothing opens"


@pytest.mark.parametrize(("link", "typed"), [
    ("[runs](runs.md)", "`duoln help runs`"), ("[`runs`](runs.md)", "`duoln help runs`"),
    ("[go on](runs.md#resume)", "go on (`duoln help runs`)"),
    ("[a task](../../examples/own_task.py)", "a task (`examples/own_task.py`)"),
    ("[`examples/own_task.py`](../../examples/own_task.py)", "`examples/own_task.py`"),
    ("![Error](../../examples/adding.png)", "(picture: Error, `examples/adding.png`)"),
    ("[the paper](https://arxiv.org/abs/1607.06450)", "[the paper](https://arxiv.org/abs/1607.06450)"),
    ("a\n```python\nx[0](runs.md)\n```\n[runs](runs.md)", "a\n```python\nx[0](runs.md)\n```\n`duoln help runs`")])
def test_a_link_says_what_to_type(link, typed):
    assert help.for_a_terminal(link) == typed


@pytest.mark.parametrize("topic", help.topics())
def test_a_page_fits_a_terminal_of_80_columns(topic, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(Console, "is_terminal", property(lambda _: True))
    console.show_page(help.for_a_terminal(help.page(topic)))
    text = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert max(map(len, text.splitlines())) <= 80 and "```" not in text and "| ---" not in text


def test_an_unknown_topic_is_an_error_that_proposes_one(told):
    code, out, err = told("guid")
    assert (code, out) == (2, "") and "did you mean 'guide'?" in err
    code, out, err = told("README", "more")
    assert (code, out) == (2, "") and "expected one topic, found 'README' and 'more'" in err


@pytest.mark.parametrize(("words", "lines"), [
    (("dropout",), [r"  guide +.*[Dd]ropout", r"  nn\.Dropout +\S.*"]), (("DataLoader",), [r"  from_pytorch +.*DataLoader"]),
    (("batch", "size"), [r"  \w+ +.*batch[ _]size"]), (("optimizer",), [r"  guide +.*optimizer", r"  optim\.Optimizer +\S.*"]), (("optimiser",), [r"  optim\.Optimizer +\S.*"]), (("layer-norm",), [r"  nn\.LayerNorm +\S.*"])])
def test_other_words_are_searched_for(words, lines, told):
    code, out, _ = told(*words)
    assert code == 0
    for line in lines:
        assert re.search(f"^{line}", out, re.MULTILINE), line
    named = re.findall(r"^  (\S+)  ", out, re.MULTILINE)
    assert named and all(name in help.topics() or pydoc.locate(f"duoln.{name}") is not None for name in named), "what is named can be printed"


def test_words_that_are_nowhere_are_an_error(told):
    for words in (("qwertz",), ("no such words here",), ("...",), ("-",), ("",)):
        code, out, err = told(*words)
        assert (code, out) == (2, "") and "[help] expected" in err


def test_lines_that_are_found_end_at_the_terminal():
    lines = list(help.search("layer", 80))
    assert max(map(len, lines)) <= 80 and any(line.endswith(" ...") for line in lines)


@pytest.mark.parametrize("name", ["nn.LSTM", "ops.layer_norm", "tasks.train"])
def test_pydoc_shows_what_the_search_names(name, told):
    code, out, _ = told(name)
    assert code == 0 and re.search(rf"^  {re.escape(name)} +\S.*[.]", out, re.MULTILINE)
    assert "python -m pydoc duoln.NAME" in out
    printed = pydoc.plain(pydoc.render_doc(f"duoln.{name}"))
    assert f"{name.rpartition('.')[2]}(" in printed and inspect.getdoc(pydoc.locate(f"duoln.{name}")).splitlines()[0] in printed


def test_every_module_of_public_names_is_found():
    for module in map(importlib.import_module, MODULES):
        assert public_names(module) and all(hasattr(module, name) for name in public_names(module))
    assert set(public_names(duoln.ops)) == set(duoln.ops.__all__)
