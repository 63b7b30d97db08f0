"""The tables of README.md and RESULTS.md that come from kept runs. Each stands between two comments, the first of which
is its command, where asked for with the columns that it keeps:

    <!-- duoln report results/small --markdown -->
    <!-- end -->

    <!-- duoln report results/small --markdown --over test_nll; columns 40, 200, 400 -->
    <!-- end -->

or the rows of a table of the paper: kinds of figures, each for all variants, and what is asked of them, with one decimal:

    <!-- rows of results/captions: image = test_image, caption = test_caption; R@1 = r1, mean rank = mean_rank -->
    <!-- end -->

or the figures of `duoln evaluate RUN --json`, kept as `evaluation.json` beside a run:

    <!-- evaluated results/paper: bound = test_bound, standard error = test_error -->
    <!-- end -->

or what an evaluation of skip-thoughts judged by the protocol of table 3: the runs, and what stands beside them:

    <!-- judged results/novels100 -->
    <!-- end -->

or in `kernels/README.md` the operators with a rule for a GPU, as on a machine with every backend:

    <!-- duoln doctor --ops --markdown -->
    <!-- end -->

Paths are relative to the page's folder.

    python tests/tools/readme_tables.py          write them all anew
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"(<!-- duoln (?P<command>report [^;\n]*--markdown[^;\n]*)(?:; columns (?P<columns>.*?))? -->\n).*?(<!-- end -->)",
                    re.DOTALL)
_ROWS = re.compile(r"(<!-- rows of (?P<results>\S+): (?P<kinds>.*?); (?P<asked>.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_EVALUATED = re.compile(r"(<!-- evaluated (?P<results>\S+): (?P<asked>.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
_RULES = re.compile(r"(<!-- duoln doctor --ops --markdown -->\n).*?(<!-- end -->)", re.DOTALL)
_JUDGED = re.compile(r"(<!-- judged (?P<results>\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> Iterator[Path]:
    """The files that may have such tables."""
    for name in ("README.md", "RESULTS.md"):
        yield from sorted((ROOT / "plugins").glob(f"*/{name}"))


def renewed(page: Path) -> str:
    """The text of a page with its tables made anew."""
    text = _ROWS.sub(lambda match: f"{match[1]}{_rows(match, page.parent)}{match[5]}", page.read_text(encoding="utf-8"))
    text = _EVALUATED.sub(lambda match: f"{match[1]}{_evaluated(match, page.parent)}{match[4]}", text)
    text = _JUDGED.sub(lambda match: f"{match[1]}{_judged(match, page.parent)}{match[3]}", text)
    text = _RULES.sub(lambda match: f"{match[1]}{_rules()}\n{match[2]}", text)
    return _BLOCK.sub(lambda match: f"{match[1]}{_report(match, page.parent)}{match[4]}", text)


def _report(match: re.Match[str], folder: Path) -> str:
    """The table of `duoln report`: the first column and those that are asked for, or all."""
    table = _output(match["command"], folder)
    if match["columns"] is None:
        return table
    cells = [line[2:-2].split(" | ") for line in table.splitlines()]
    columns = [0, *(cells[0].index(name) for name in match["columns"].split(", "))]
    return "".join(f"| {' | '.join(line[k] for k in columns)} |\n" for line in cells)


def _rows(match: re.Match[str], folder: Path) -> str:
    """A row for each kind and variant: median, and the range where the runs differ."""
    kinds, asked = (dict(pair.split(" = ") for pair in match[name].split(", ")) for name in ("kinds", "asked"))
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in (folder / match["results"]).glob("*/result.json")]
    lines = [["", *asked], ["---"] * (1 + len(asked))]
    for kind, prefix in kinds.items():
        for variant in sorted({run["variant"] for run in runs}):
            of_variant = [run for run in runs if run["variant"] == variant]
            lines.append([f"{kind}, `{variant}`",
                          *(_median([run[f"{prefix}_{key}"] for run in of_variant]) for key in asked.values())])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _evaluated(match: re.Match[str], folder: Path) -> str:
    """A row for each evaluated run, with two decimals."""
    asked = dict(pair.split(" = ") for pair in match["asked"].split(", "))
    runs = [json.loads(path.read_text(encoding="utf-8"))
            for path in sorted((folder / match["results"]).glob("*/evaluation.json"))]
    lines = [["variant", "updates", *asked], ["---"] * (2 + len(asked))]
    lines += [[f"`{run['variant']}`", f"{run['update']:,}", *(f"{run[key]:.2f}" for key in asked.values())] for run in runs]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _judged(match: re.Match[str], folder: Path) -> str:
    """A row for each encoder. The bag of words is that of every run."""
    rows = {}
    for path in sorted((folder / match["results"]).glob("*/evaluation.json")):
        evaluated = json.loads(path.read_text(encoding="utf-8"))
        for encoder, figures in evaluated["results"].items():
            rows[encoder.replace("no update", f"{evaluated['variant']}, no update")] = figures
    lines = [["", "r", "rho", "MSE", "MR", "CR", "SUBJ", "MPQA"], ["---"] * 8]
    lines += [[encoder, *(f"{figures[f'sick_{key}']:.3f}" for key in ("r", "rho", "mse")),
               *(f"{figures[f'{key}_accuracy']:.1f}" for key in ("mr", "cr", "subj", "mpqa"))]
              for encoder, figures in sorted(rows.items(), key=lambda row: ("update" not in row[0], "no update" in row[0], row[0]))]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rules() -> str:
    from conftest import STAND_IN, get_backend

    from duoln import doctor

    for name in ("numpy", "mlx", STAND_IN):
        get_backend(name)
    table = doctor.rules_table(("numpy", "cupy", "mlx"))
    return "\n".join(line for line in table.splitlines() if not line.endswith("| - | - |"))


def _median(values: list[float]) -> str:
    middle, low, high = (f"{value:.1f}" for value in (statistics.median(values), min(values), max(values)))
    return middle if low == high else f"{middle} ({low}-{high})"


def _output(command: str, folder: Path) -> str:
    from duoln.cli import main

    out = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main(shlex.split(command))
    if code:
        raise SystemExit(f"{folder}: duoln {command}: expected exit code 0, found {code}")
    return out.getvalue()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tests"))
    os.environ.setdefault("COLUMNS", "200")
    for path in (*pages(), ROOT / "kernels" / "README.md"):
        path.write_text(renewed(path), encoding="utf-8")
