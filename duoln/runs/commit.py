"""The commit that duoln runs from."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duoln

_COMMIT_DIGITS, _GIT_SECONDS = 10, 10
_COMMIT = ".commit"
"""A file in a copy without `.git`: the output of `git describe --always --dirty --abbrev=40 --exclude '*'`."""
_DIRTY = "-dirty"


def git() -> dict[str, Any] | None:
    """The commit that duoln runs from, and whether files differ from it; None outside a checkout of duoln.

    A copy of a checkout has it in the file `.commit`.
    """
    root = Path(duoln.__file__).resolve().parents[1]
    if (root / _COMMIT).is_file():
        commit = (root / _COMMIT).read_text(encoding="utf-8").strip()
        return {"sha": commit.removesuffix(_DIRTY), "dirty": commit.endswith(_DIRTY)} if commit else None
    if not (root / ".git").exists():
        return None
    sha = _answer(root, "rev-parse", "HEAD")
    changes = _answer(root, "--no-optional-locks", "status", "--porcelain")
    if sha is None or changes is None:
        return None
    return {"sha": sha, "dirty": changes != ""}


def _answer(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False,
                              timeout=_GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None  # git is not installed or does not answer, so the commit is unknown
    return done.stdout.strip() if done.returncode == 0 else None


def commit_words(of_git: Mapping[str, Any] | None) -> str | None:
    """The commit as `git` gives it, short, in words."""
    return None if of_git is None else of_git["sha"][:_COMMIT_DIGITS] + (" with changes" if of_git["dirty"] else "")
