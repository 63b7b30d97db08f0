"""The page on runs names every exit code."""

import re
from pathlib import Path

import duoln
from duoln import errors
from duoln.system import stopping

PAGE = (Path(duoln.__file__).parent / "docs" / "runs.md").read_text(encoding="utf-8")


def test_the_exit_codes_are_those_of_errors_and_signals():
    told = [int(code) for row in re.findall(r"^\| (\d[\d, ]*) \|", PAGE, re.MULTILINE) for code in row.split(",")]
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DuolnError)]
    signals = {stopping.exit_code(number) for number in stopping.STOPPING}
    assert set(told) == {0} | {kind.exit_code for kind in kinds} | signals and len(told) == len(set(told))
