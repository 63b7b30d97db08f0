"""All Markdown: its Python runs, what it names exists, and it is short enough to be read."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import duoln
from duoln import errors, tree
from duoln.cli import build_parser, help
from duoln.runtime import native_facts
from duoln.system import stopping

ROOT = Path(__file__).parent.parent
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (
    ROOT / "README.md", ROOT / ".github/CONTRIBUTING.md",
    *(path for top in ("duoln", "kernels", "plugins", "examples") for path in (ROOT / top).rglob("*.md"))))
"""All pages, by their paths in the checkout."""
PAGES = [file for file in FILES if file.startswith("duoln/docs/")]
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def text_of(file):
    return (ROOT / file).read_text(encoding="utf-8")


def run_python_of(file, text=None, language="python"):
    """Run a file's blocks of Python in order, in one namespace, and give it; `text` is in the place of the file's own."""
    namespace = {"__name__": "readme"}
    for block in re.findall(rf"```{language}\n(.*?)```", text or text_of(file), re.DOTALL):
        exec(compile(block, file, "exec"), namespace)
    return namespace


@pytest.mark.parametrize("file", [file for file in FILES if file != "README.md"])
def test_its_python_runs_in_order(file, tmp_path, monkeypatch):
    """`test_readme.py` runs that of the README."""
    monkeypatch.chdir(tmp_path)  # some of it writes files
    run_python_of(file)


@pytest.mark.parametrize("file", FILES)
def test_linked_files_exist(file):
    targets = re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", _FENCE.sub("", text_of(file)))
    assert file != "README.md" or len(targets) >= 3
    assert [target for target in targets if not ((ROOT / file).parent / target).exists()] == []


@pytest.mark.parametrize("file", FILES)
def test_commands_parse(file):
    shell = "".join(re.findall(r"```sh\n(.*?)```", text_of(file), re.DOTALL)).replace("\\\n", " ")
    lines = re.findall(r"^duoln (.*?)(?:\s+#.*)?$", shell, re.MULTILINE)
    assert file != "README.md" or len(lines) >= 4
    for line in lines:
        build_parser().parse_args(shlex.split(line.replace("[--json]", "--json")))


@pytest.mark.parametrize("file", FILES)
def test_tests_that_are_named_exist(file):
    assert [name for name in re.findall(r"`(tests/[\w/.]+)", text_of(file)) if not (ROOT / name).exists()] == []


# The pages of `duoln help` ----------------------------------------------------------------------------

def test_the_index_and_the_command_have_every_page():
    linked = re.findall(r"\]\((\w+)\.md\)", text_of("duoln/docs/README.md"))
    assert ["README", *linked] == list(help.topics()) and {f"duoln/docs/{topic}.md" for topic in help.topics()} == set(PAGES)


@pytest.mark.parametrize("file", PAGES)
def test_a_page_begins_with_a_title_and_a_sentence(file):
    """`duoln help` lists them."""
    assert re.match(r"# [A-Z][^\n]+\n\n[^|#*\n-]((?!\n\n).)*\.\s", text_of(file), re.DOTALL)


@pytest.mark.parametrize("file", PAGES)
def test_a_table_of_a_page_is_readable_in_a_terminal(file):
    rows = [line for line in _FENCE.sub("", text_of(file)).splitlines() if line.startswith("|")]
    assert [row for row in rows if len(re.split(r"(?<!\\)\|", row)) - 2 > 4] == [], "more than four columns"


# Sizes ------------------------------------------------------------------------------------------------

def words(files):
    return sum(len(text_of(file).split()) for file in files)


def test_the_walk_passes_files_that_exist():
    walk = text_of(".github/CONTRIBUTING.md").partition("## Walk through the house")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+\.(?:py|cpp|md|toml))`", walk)
    paths = [f"/{path.relative_to(ROOT).as_posix()}" for top in ("duoln", "kernels", "plugins", "tests")
             for path in (ROOT / top).rglob("*.*")] + ["/pyproject.toml"]
    assert len(named) > 40 and len(walk.splitlines()) <= 60
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in paths)] == []


def test_all_of_it_is_short():
    assert words(FILES) <= 23_900


def test_the_pages_are_read_in_fifty_minutes():
    assert words(PAGES) <= 10_300


def most_lines(file):
    """How many lines a file may have; None leaves it open."""
    if file == "README.md":
        return 130
    if file == "kernels/README.md":
        return 120
    return 40 if re.fullmatch(r"plugins/\w+/README\.md", file) else None


@pytest.mark.parametrize("file", [file for file in FILES if most_lines(file)])
def test_a_readme_is_short(file):
    assert len(text_of(file).splitlines()) <= most_lines(file)


def test_the_readme_is_read_in_five_minutes():
    assert words(["README.md"]) <= 1_050


@pytest.mark.parametrize("file", ["README.md", *PAGES])
def test_code_fits_a_page(file):
    lines = [line for _, block in _FENCE.findall(text_of(file)) for line in block.splitlines()]
    assert [line for line in lines if len(line) > 92] == []


# Pages ------------------------------------------------------------------------------------------------

LANGUAGE_MODEL = {
    "UPDATES, HALF = 240": "UPDATES, HALF = 12", "% 60 == 0": "% 4 == 0", "len(symbols), 128)": "len(symbols), 16)",
    '"text-model", 150)': '"text-model", 6)', "linear_warmup(50": "linear_warmup(5", "UPDATES - 50": "UPDATES - 5", "write(200)": "write(20)"}
"""The lines of the page that decide how long it trains, and shorter ones."""


def test_a_killed_training_goes_on_to_the_same_bits_and_the_best_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    text = text_of("duoln/docs/language_model.md")
    for long, short in LANGUAGE_MODEL.items():
        assert text.count(long) == 1, long
        text = text.replace(long, short)
    page = run_python_of("duoln/docs/language_model.md", text)
    told = re.findall(r"^update (\d+): [0-9.]+ nats", capsys.readouterr().out, re.MULTILINE)
    assert told == ["4", "8", "12"], "the second call begins after update 4"
    killed, whole = page["train"]("text-model", 12), page["train"]("whole", 12)
    for a, b in zip(tree.leaves(killed), tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    best = duoln.load("whole/best.safetensors", page["backend"])
    assert page["validate"](best) == duoln.load_state("whole/states", page["backend"])["best"].item()
    assert len(page["write"](20)) == 22


def test_the_page_of_debugging_prints_what_stands_below_its_code(capsys):
    text = text_of("duoln/docs/debugging.md")
    run_python_of("duoln/docs/debugging.md")
    *summary, kept, first_nan, rates = capsys.readouterr().out.rstrip("\n").split("\n")
    assert "```\n" + "\n".join(summary) + "\n" in text
    assert f"\n{kept}\n```\n" in text or native_facts()["rules"] != "compiled", "NumPy's rules keep different values"
    told = re.search(r"print\(error\)  # (.*) \.\.\.\n", text)[1]
    assert first_nan.startswith(told)
    assert f"# {rates}\n" in text


def test_the_exit_codes_of_the_page_of_runs_are_those_of_errors_and_signals():
    told = [int(code) for row in re.findall(r"^\| (\d[\d, ]*) \|", text_of("duoln/docs/runs.md"), re.MULTILINE) for code in row.split(",")]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DuolnError)]
    signals = {errors.exit_code(number) for number in stopping.STOPPING}
    assert set(told) == {0} | {kind.exit_code for kind in kinds} | signals and len(told) == len(set(told))


@pytest.mark.peers
def test_the_pytorch_of_the_page_about_it_runs_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = text_of("duoln/docs/inside_pytorch.md")
    assert 'LSTM(400, 400, norm="layer")' in re.search(r"```py\n(.*?)```", text, re.DOTALL)[1]
    page = run_python_of("duoln/docs/inside_pytorch.md", text.replace("```py\n", "```diff\n", 1), "py")
    assert page["loss"].isfinite() and (tmp_path / "model.pt").exists()


FILE = Path(__file__).parent.parent / "duoln" / "docs" / "from_pytorch.md"


class Pair(NamedTuple):
    """Lines of PyTorch, which the page has as a comment, and the lines of ours below them."""

    torch: str
    duoln: str


def pairs():
    blocks = re.findall(r"```python\n(.*?)```", FILE.read_text(encoding="utf-8"), re.DOTALL)
    return [Pair(re.sub(r"^# ", "", theirs, flags=re.MULTILINE), ours) for block in blocks
            for theirs, ours in re.findall(r"((?:^#.*\n)+)((?:^[^#\n].*\n)+)", block, re.MULTILINE)]


def run(side):
    """The values of one side after each pair, by name, with the shapes of those that have one."""
    namespace, shapes = {}, []
    for pair in pairs():
        code = getattr(pair, side)
        exec(compile(code, code, "exec"), namespace)
        shapes.append({name: tuple(value.shape) for name, value in namespace.items()
                       if isinstance(getattr(value, "shape", None), tuple)})
    return namespace, shapes


@pytest.fixture
def ours(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DUOLN_BACKEND", "numpy")
    return run("duoln")


def test_every_line_is_one_of_a_pair():
    code = "".join(re.findall(r"```python\n(.*?)```", FILE.read_text(encoding="utf-8"), re.DOTALL))
    assert len(pairs()) >= 27 and sum(text.count("\n") for pair in pairs() for text in pair) == code.count("\n")


def test_every_line_of_ours_runs(ours):
    values, shapes = ours
    assert values["y"].shape == (8, 3) and values["h"].shape == (2, 4, 16) and len(values["states"]) == 2
    assert values["count"] == 4 * 16 + 16 + 2 * 16 + 16 * 3 + 3 and isinstance(values["number"], float)
    assert values["batch"]["x"].shape == (4, 4) and {"x", "label", "y", "rows"} <= shapes[-1].keys()


@pytest.mark.peers
def test_every_line_of_pytorch_runs_and_has_the_shapes_of_ours(ours, tmp_path):
    pytest.importorskip("torch")
    values, theirs = run("torch")
    for pair, left, right in zip(pairs(), theirs, ours[1], strict=True):
        shared = left.keys() & right.keys()
        assert {name: left[name] for name in shared} == {name: right[name] for name in shared}, pair.duoln
    assert values["count"] == ours[0]["count"] and len(shared) >= 8
