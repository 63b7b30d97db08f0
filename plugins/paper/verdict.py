"""The verdict on a claim. It is computed from evidence by the rules in `METHOD`, and written nowhere."""

from __future__ import annotations

from typing import Literal, get_args

Verdict = Literal["holds", "does not hold", "cannot be told", "too short to tell", "not measured"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Kind = Literal["exact", "original, full", "original, short", "substitute"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""The kinds of evidence; an exact one is a computation."""
ENOUGH_SEEDS = 5
METHOD = (
    f"Runs: a claim holds if, of at least {ENOUGH_SEEDS} seeds, each of the variant that should win is better than all "
    "of the other, and does not hold if each is worse. If they overlap, it cannot be told. The winner must beat a "
    "trivial answer, where the task has one. Figures of the end need runs as long as the paper's. Fewer seeds and "
    "shorter runs are too short to tell; what they say is said, too. Runs of several settings are never mixed.",
    "Which runs: those on the best data (original, then substitute, then synthetic), of these the longest, of these "
    "those with the most seeds. The length is that of the shortest run, in updates, by the paper's.",
    "Findings of duoln analyze: exact computations need no seeds; those that train or draw networks need as many as "
    "runs. A claim without runs or a finding is not measured, and the reason stands beside it.")
"""The rules of a verdict, in words."""
_SAYS = {True: "holds", False: "does not hold", None: "cannot be told"}


def of_seeds(holds: bool | None, seeds: int, long_enough: bool = True) -> Verdict:
    """The verdict of an answer.

    Args:
        holds: whether the claim holds; None if the seeds overlap.
        seeds: how many there are; an exact computation counts as enough.
        long_enough: whether the runs are as long as the claim needs.
    """
    if seeds < ENOUGH_SEEDS or not long_enough:
        return "too short to tell"
    return "cannot be told" if holds is None else "holds" if holds else "does not hold"


def so_far(holds: bool | None, seeds: int) -> str:
    """A remark on what evidence says that is no verdict yet."""
    return f"so far: it {_SAYS[holds]} ({seeds} seed{'' if seeds == 1 else 's'})"
