"""The README's Python runs, and what it names exists."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_python_blocks_run_in_order():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 3
    namespace = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), namespace)


def test_the_set_up_lines():
    assert "pip install . && python -m duoln.examples.mnist\npip install -e \".[test]\" && pytest -n auto --dist loadfile\n" in README
    script = (ROOT / ".ci" / "run").read_text()
    assert 'pip install -q -e ".[test]"' in script and "\npytest -n auto --dist loadfile" in script


def test_linked_files_exist():
    targets = re.findall(r"\]\((?!http)([^)]+)\)", README)
    assert len(targets) >= 3
    for target in targets:
        assert (ROOT / target).exists(), target


def test_commands_parse():
    from duoln.cli import build_parser

    shell = "".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))
    lines = re.findall(r"^duoln (.*?)(?:\s+#.*)?$", shell, re.MULTILINE)
    assert lines
    for line in lines:
        build_parser().parse_args(shlex.split(line))


def test_variables_are_the_ones_that_the_code_reads():
    source = "".join(p.read_text() for folder in ("duoln", "kernels", "plugins", "tests")
                     for p in (ROOT / folder).rglob("*.py"))
    told = {name for name in re.findall(r"^\| `(\w+)", README, re.MULTILINE) if name.isupper()}
    own = set(re.findall(r'"(DUOLN_\w+)"', source)) - {"DUOLN_STRICT_PLUGINS", "DUOLN_DISABLE_PLUGIN_AUTOLOAD"}
    assert {"DUOLN_DATA", "DUOLN_BACKEND", "OPENBLAS_CORETYPE"} <= told and {"DUOLN_DATA", "DUOLN_BACKEND"} <= own
    for name in told:
        assert f'"{name}"' in source, name
    for name in own:
        assert f"`{name}" in README, name
