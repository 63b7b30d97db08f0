"""The verdict on a claim. It is computed from evidence by the rules in `METHOD`, and written nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

Verdict = Literal["holds", "does not hold", "depends on the seed", "too short to tell", "not measured"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
AGREED: tuple[Verdict, ...] = ("holds", "does not hold")
"""Verdicts that all seeds share."""
ENOUGH_SEEDS = 3
METHOD = (
    "Runs: each seed says by the claim's rule whether the claim holds. If all seeds say the same, and there are at "
    f"least {ENOUGH_SEEDS} of them or the runs are at least as long as the paper's, that is the verdict: holds, or "
    f"does not hold. If at least {ENOUGH_SEEDS} seeds of that length say different things, the claim depends on the "
    "seed. Otherwise it is too short to tell. What the seeds say stands beside both. Runs of several settings are "
    "never mixed. A claim about equal ends of training needs runs as long as the paper's.",
    "Which runs: those on the best data (original, then substitute, then synthetic), of these the longest, of these "
    "those with the most seeds. The length is that of the shortest run, in updates, by the paper's.",
    "Findings of duoln analyze are exact computations, so one is enough. A claim without runs or a finding is not "
    "measured, and the reason stands beside it.")
"""The rules of a verdict, in words."""
_SAYS = {True: "holds", False: "does not hold", None: "cannot be told"}


def of_seeds(seeds: Sequence[bool | None], share: float, only_whole: bool = False) -> Verdict:
    """The verdict of runs.

    Args:
        seeds: for each seed, whether the claim holds; None where its runs cannot tell. An exact computation is one
            seed.
        share: the length of the shortest run as a share of the paper's; 1 for an exact computation.
        only_whole: whether several seeds of shorter runs are no verdict.
    """
    if not seeds:
        return "not measured"
    whole, several = share >= 1, len(seeds) >= ENOUGH_SEEDS
    if whole and several and set(seeds) == {True, False}:
        return "depends on the seed"
    if not (whole or (several and not only_whole)) or len(set(seeds)) != 1 or seeds[0] is None:
        return "too short to tell"
    return "holds" if seeds[0] else "does not hold"


def so_far(seeds: Sequence[bool | None]) -> str:
    """A remark on seeds that do not agree or are no verdict yet; at least one seed."""
    count = f"{len(seeds)} seed{'' if len(seeds) == 1 else 's'}"
    if len(set(seeds)) > 1:
        return f"so far: it holds for {seeds.count(True)} of {count}"
    return f"so far: it {_SAYS[seeds[0]]} ({count})"
