"""Prints the kernels that are broken on purpose, with the number of seeds that found each.

    python tests/tools/hostgpu_table.py        20 seeds
    python tests/tools/hostgpu_table.py 200
"""

from __future__ import annotations

import sys

from hostgpu_broken import BROKEN
from hostgpu_broken_walks import WALKS


def main(seeds: int) -> None:
    """Print the table, for Markdown; fail where the machine complains about a sound text."""
    print(f"| class | kernels of ours, broken (seeds of {seeds} that found it) | small kernels, broken |\n| --- | --- | --- |")
    for kind in dict.fromkeys(b.kind for b in (*BROKEN, *WALKS)):
        cells: dict[bool, list[str]] = {True: [], False: []}
        for broken in (b for b in (*BROKEN, *WALKS) if b.kind == kind):
            for seed in range(seeds):
                if outcome := broken.outcome(seed, broken=False):
                    raise SystemExit(f"{broken}: the sound text fails: {outcome}")
            cells[broken.ours].append(f"{broken.name} ({sum(bool(broken.outcome(seed)) for seed in range(seeds))})")
        print(f"| {kind} | {'; '.join(cells[True])} | {'; '.join(cells[False])} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
