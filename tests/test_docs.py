"""All Markdown: its Python runs, what it names exists, and it is short enough to be read."""

import re
import shlex
from pathlib import Path

import pytest

from duoln.cli import build_parser, help

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "duoln" / "docs"
FILES = sorted(path.relative_to(ROOT).as_posix() for path in (
    ROOT / "README.md", ROOT / ".github/CONTRIBUTING.md",
    *(path for top in ("duoln", "kernels", "plugins", "examples") for path in (ROOT / top).rglob("*.md"))))
"""All pages, by their paths in the checkout."""
PAGES = [file for file in FILES if file.startswith("duoln/docs/")]
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def text_of(file):
    return (ROOT / file).read_text(encoding="utf-8")


def run_python_of(file):
    """Run a file's blocks of Python in order, in one namespace, and give it."""
    namespace = {"__name__": "readme"}
    for block in re.findall(r"```python\n(.*?)```", text_of(file), re.DOTALL):
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


def test_all_of_it_is_short():
    assert words(FILES) <= 26_500


def test_the_pages_are_read_in_fifty_minutes():
    assert words(PAGES) <= 11_700


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
