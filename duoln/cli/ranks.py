"""`duoln run --ranks`: one command as N processes of this machine, or as one of the processes of a launcher."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from duoln import runtime
from duoln.cli import console, streams
from duoln.cli.planned import BY_LAUNCH, resume_command
from duoln.errors import RankError, UsageError, exit_code
from duoln.system.filesystem import temporary_folder

if TYPE_CHECKING:
    from duoln.distributed.rank_info import RankInfo

_MOST = 64


def parse_ranks(word: str) -> int | str:
    """The value of --ranks: a number of processes, or the launcher that has started them."""
    from duoln.distributed.rank_info import LAUNCHERS

    if word == "auto" or word in LAUNCHERS:
        return word
    try:
        return int(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, auto, {', '.join(LAUNCHERS)}; found {word!r}") from None


def take_rank(launcher: str) -> RankInfo | None:
    """The rank of this process among those that a launcher started; None if there is only this one.

    Raises:
        UsageError: the variables of the launcher are incomplete or contradict each other.
    """
    from duoln.distributed.launching import end_with_launcher
    from duoln.distributed.rank_info import choose_gpu, find_rank

    end_with_launcher()
    info = find_rank(launcher)
    if info is None:
        console.say("ranks: one process alone")
        return None
    if info.local_rank is not None:
        choose_gpu(info.local_rank)
    console.say(f"ranks: this is rank {info.rank} of {info.size}; they meet at {info.meeting}")
    return info


def launch(count: int, args: argparse.Namespace) -> int:
    """Run the command line `args.words` in `count` processes; returns the exit code.

    Rank 0 uses this terminal. The output of another rank is shown if that rank fails. Ctrl-C, SIGTERM and SIGHUP go
    to rank 0, which informs the others; a second signal ends rank 0 at once.

    Raises:
        UsageError: the number of ranks or the backend is not possible.
        RankError: a rank ended by an error; the others have been ended.
    """
    from duoln.distributed.joining import check_engine
    from duoln.distributed.launching import Children
    from duoln.distributed.rank_info import choose_gpu

    if not 1 <= count <= _MOST:
        raise UsageError(f"[ranks] expected --ranks between 1 and {_MOST}, found {count}")
    library = runtime.choose(args.backend)[0].name
    check_engine(library)
    if library == "cupy":
        choose_gpu(count - 1, dict(os.environ))
    console.say(f"ranks: {count} on {library}, each with 1/{count} of every batch")
    with temporary_folder() as folder:
        heard = [folder / f"rank{k}.txt" for k in range(count)]
        with Children() as children, children.receive_signals():
            children.start([*args.words, *BY_LAUNCH], heard, streams.child_stdout())
            dead = children.wait()
        if dead is None:
            return 0
        code, first = children.ranks[dead].returncode, children.ranks[0].returncode
        if -first in children.sent:
            return exit_code(-first)  # it had not begun to train, or got a second signal
        if code > 0 and (dead == 0 or first > RankError.exit_code):
            return first  # rank 0 has reported the error, unless its error is only that another rank ended
        last_words = _last_words(heard[dead]) if dead else ""
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        raise RankError(f"rank {dead} {how}; the other ranks were ended. Go on from the last "
                        f"checkpoint with\n{resume_command(args.words, args.out)}{last_words}")


def _last_words(heard: Path) -> str:
    lines = [line for line in heard.read_text(encoding="utf-8", errors="replace").splitlines()
             if line.strip() and not line.startswith("[ring]")]
    return "".join(f"\n  its output: {line}" for line in lines[-3:])
