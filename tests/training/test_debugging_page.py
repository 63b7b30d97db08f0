"""The output that the page on debugging shows is what its code prints."""

import re
from pathlib import Path

from duoln.runtime import native_facts

PAGE = Path(__file__).parents[2] / "duoln" / "docs" / "debugging.md"


def test_the_python_prints_what_stands_below_it(capsys):
    text, values = PAGE.read_text(encoding="utf-8"), {}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, PAGE.name, "exec"), values)
    *summary, kept, first_nan, rates = capsys.readouterr().out.rstrip("\n").split("\n")
    assert "```\n" + "\n".join(summary) + "\n" in text
    assert f"\n{kept}\n```\n" in text or native_facts()["rules"] != "compiled", "NumPy's rules keep different values"
    told = re.search(r"print\(error\)  # (.*) \.\.\.\n", text)[1]
    assert first_nan.startswith(told)
    assert f"# {rates}\n" in text
