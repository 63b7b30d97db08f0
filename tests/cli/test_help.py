"""`duoln help`: pages, the list of them, and the public names."""

import importlib
import re

import pytest
from rich.console import Console

import duoln
from duoln.cli import api, console, help, help_search, main


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
    assert code == 0 and [line.split()[0] for line in lines[:-2]] == [*help.topics(), "api"]
    assert lines[0].startswith("README ") and "Documentation: The pages of duoln" in lines[0]
    assert all(re.fullmatch(r"\w+ +[A-Z].*: \S.*[.]", line) for line in lines[:-3]), "a title, and a whole sentence"


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
    (("batch", "size"), [r"  \w+ +.*batch[ _]size"]), (("optimizer",), [r"  guide +.*optimiser", r"  optim\.Optimizer +\S.*"]), (("optimiser",), [r"  optim\.Optimizer +\S.*"]), (("layer-norm",), [r"  nn\.LayerNorm +\S.*"])])
def test_other_words_are_searched_for(words, lines, told):
    code, out, _ = told(*words)
    assert code == 0
    for line in lines:
        assert re.search(f"^{line}", out, re.MULTILINE), line
    named = re.findall(r"^  (\S+)  ", out, re.MULTILINE)
    assert named and all(name in help.topics() or api.page(name, 80) for name in named), "what is named can be shown"


def test_words_that_are_nowhere_are_an_error(told):
    for words in (("qwertz",), ("no such words here",), ("...",), ("-",), ("",)):
        code, out, err = told(*words)
        assert (code, out) == (2, "") and "[help] expected" in err
    code, out, err = told("api", "nn.LSTM", "more")
    assert code == 2 and "expected one topic, found 'api' and 'more'" in err


def test_lines_that_are_found_end_at_the_terminal():
    lines = list(help_search.search("layer", 80))
    assert max(map(len, lines)) <= 80 and any(line.endswith(" ...") for line in lines)


def test_topics_are_choices_that_a_shell_can_complete():
    from duoln.cli import build_parser

    [commands] = [a for a in build_parser()._actions if a.dest == "command"]
    [topic] = [a for a in commands.choices["help"]._actions if a.dest == "topic"]
    assert tuple(topic.choices) == (*help.topics(), "api")


def test_every_public_name_has_a_line(told):
    code, out, _ = told("api")
    assert code == 0
    parts = {part.partition(":")[0]: part.splitlines()[1:] for part in out.rstrip().split("\n\n")}
    assert tuple(parts) == api.MODULES
    assert {"LSTM", "Linear"} <= {line.split()[0] for line in parts["duoln.nn"]}
    assert {line.split()[0] for line in parts["duoln.ops"]} == set(duoln.ops.__all__)
    assert all(re.fullmatch(r"  \w+ +\S.*", line) for lines in parts.values() for line in lines), "each has words"


def test_a_line_is_no_wider_than_the_terminal():
    lines = list(api.lines(80))
    assert max(map(len, lines)) <= 80 and any(line.endswith(" ...") for line in lines)


@pytest.mark.parametrize("words", [("api", "nn.LSTM"), ("nn.LSTM",), ("api", "LSTM"), ("duoln.nn.LSTM",)])
def test_one_name(words, told):
    code, out, _ = told(*words)
    assert code == 0 and out.startswith("duoln.nn.LSTM(\n    n_in: int,\n    n_hidden: int,\n    norm: Norm = 'none',\n")
    assert ".init(rng: Stream | int | None = None) -> Params\n    The initial parameters" in out
    assert ".parameters" not in out, "a name that only says what to write instead"
    assert re.search(r"^\.__call__\(params: Params, x: Tensor, states", out, re.MULTILINE), "no default that means none"


@pytest.mark.parametrize(("name", "begin"), [
    ("ops.exp", "duoln.ops.exp(x: Tensor) -> Tensor\n\n"), ("data.DATA_SEED", "duoln.data.DATA_SEED = 0\n"),
    ("UsageError", "duoln.errors.UsageError"),
    ("ops.layer_norm", "duoln.ops.layer_norm(\n    x: Tensor,\n    gain: Tensor | None = None,\n    bias: Tensor | None = None,\n    *,\n")])
def test_names_of_other_kinds(name, begin, told):
    code, out, _ = told("api", name)
    assert code == 0 and out.startswith(begin)


def test_a_docstring_is_filled_anew_where_it_is_too_wide():
    text = ("A sentence that is too wide for the terminal, and goes on.\nIts second line.\n\n    >>> code(that, is_, wide, is_, never, broken)\n\n"
            "Args:\n    first: words that are more\n        than fit.\n    second: few.")
    assert api.filled(text, 30).splitlines() == [
        "A sentence that is too wide", "for the terminal, and goes on.", "Its second line.", "", "    >>> code(that, is_, wide, is_, never, broken)", "",
        "Args:", "    first: words that are more", "        than fit.", "    second: few."]
    assert api.filled(text, 120) == text


@pytest.mark.parametrize(("name", "error"), [
    ("nn.lstm", "found 'nn.lstm'; did you mean 'nn.LSTM'?"), ("xyz.xyz", "expected a public name, found 'xyz.xyz'; `duoln help api`"),
    ("zeros", "found 'zeros', which is the end of duoln.nn.init.zeros and duoln.ops.zeros")])
def test_a_name_that_is_unknown_or_of_two(name, error, told):
    code, out, err = told("api", name)
    assert (code, out) == (2, "") and error in err


@pytest.mark.parametrize("module", api.MODULES)
def test_every_public_name_has_a_page(module):
    for name in api.public_names(importlib.import_module(module)):
        assert re.match(rf"duoln\.([\w.]+\.)?{name}(\(| = |$)", api.page(f"{module}.{name}", 80), re.MULTILINE)


def test_a_module_is_a_list_of_its_names(told):
    code, out, _ = told("api", "optim")
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("duoln.optim: ") and any(line.startswith("  AdamW ") for line in lines) and not any("LSTM" in line for line in lines)
