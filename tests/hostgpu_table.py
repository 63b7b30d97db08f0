"""Prints the kernels that are broken on purpose, with the number of seeds that found each.

    python tests/hostgpu_table.py        20 seeds
    python tests/hostgpu_table.py 200
"""

from __future__ import annotations

import sys

from hostgpu_broken import BROKEN


def main(seeds: int) -> None:
    """Print the table, for Markdown."""
    print("| class | broken on purpose | a kernel of ours | seeds that found it | the sound text |\n| --- | --- | --- | --- | --- |")
    for broken in BROKEN:
        count = sum(bool(broken.outcome(seed)) for seed in range(seeds))
        sound = sum(not broken.outcome(seed, broken=False) for seed in range(seeds))
        print(f"| {broken.kind} | {broken.name} | {'yes' if broken.ours else ''} | {count} of {seeds} | {sound} pass |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
