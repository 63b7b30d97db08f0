"""The output that the README of the training shows is what its code prints."""

import re
from pathlib import Path

from duoln.runtime import native_facts

README = Path(__file__).parents[2] / "duoln" / "training" / "README.md"


def test_the_python_prints_what_stands_below_it(capsys):
    text, values = README.read_text(encoding="utf-8"), {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, README.name, "exec"), values)
    *summary, kept, rates = capsys.readouterr().out.rstrip("\n").split("\n")
    assert "```\n" + "\n".join(summary) + "\n" in text
    assert f"\n{kept}\n```\n" in text or native_facts()["rules"] != "compiled", "NumPy's rules keep different values"
    assert f"# {rates}\n" in text
