"""`duoln run --ranks N`: one command as N processes of one machine, and one end for all of them."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from duoln.errors import RankError, UsageError

_WATCH_SECONDS = 0.05
_GRACE_SECONDS = 3.0
"""How long the others may take to notice that one is gone, and to say so."""
_MOST = 64


def is_rank() -> bool:
    """Whether this process is one of several that train one model."""
    from duoln.ranks import ADDRESSES

    return ADDRESSES in os.environ


def launch(count: int, args: argparse.Namespace) -> int:
    """Run the command line `args.words` in `count` processes; the exit code.

    Rank 0 has our terminal; what the others say is shown where one of them fails. Ctrl-C, SIGTERM and SIGHUP go to
    rank 0, which tells the others; a second one ends it at once.

    Raises:
        UsageError: a number of ranks, or a backend, that cannot be.
        RankError: a rank died; the others have been ended.
    """
    from duoln import console, runtime
    from duoln.backends.group import ENGINES
    from duoln.stopping import exit_code, handed_on

    if not 1 <= count <= _MOST:
        raise UsageError(f"[ranks] expected --ranks between 1 and {_MOST}, found {count}")
    if args.debug_nans:
        raise UsageError("[ranks] --debug-nans wants one process: run without --ranks")
    library = runtime.choose(args.backend)[0].name
    if library not in ENGINES:
        raise UsageError(f"[ranks] expected a backend of {', '.join(ENGINES)}, found {library}: it has no engine that "
                         f"adds arrays over processes; say --backend {next(iter(ENGINES))}")
    console.say(f"ranks: {count} on {library}, each with 1/{count} of every batch")
    with tempfile.TemporaryDirectory() as folder:
        heard = [Path(folder) / f"rank{k}.txt" for k in range(count)]
        children: list[subprocess.Popen[bytes]] = []
        sent: list[int] = []

        def hand_on(number: int) -> None:
            sent.append(number)
            for first in children[:1]:
                with contextlib.suppress(ProcessLookupError):
                    first.send_signal(number)

        with handed_on(hand_on):  # before there is a process that could miss a signal
            children += _start(count, args.words, library, heard)
            try:
                if sent:
                    children[0].send_signal(sent[-1])
                dead = _wait(children)
            finally:
                _end(children)
        if dead is None:
            return 0
        code, first = children[dead].returncode, children[0].returncode
        if -first in sent:
            return exit_code(-first)  # it had not begun to train, or was asked twice
        if code > 0 and (dead == 0 or first > RankError.exit_code):
            return first  # rank 0 has said why; where it says no more than that it lost another one, that one tells
        said = _last_words(heard[dead]) if dead else ""
        raise RankError(f"rank {dead} {_how_it_ended(code)}; the other ranks were ended. Go on from the last "
                        f"checkpoint with --resume auto{said}")


def _start(count: int, words: list[str], library: str, heard: list[Path]) -> list[subprocess.Popen[bytes]]:
    from duoln.ranks import ADDRESSES, RANK

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    if library == "cupy" and len(visible) < count:
        raise UsageError(f"[ranks] expected a GPU for each of {count} ranks, found CUDA_VISIBLE_DEVICES="
                         f"{','.join(visible)}")
    shared = {**os.environ, ADDRESSES: ",".join(_free_addresses(count)), "PYTHONPATH": os.pathsep.join(sys.path)}
    children = []
    for k in range(count):
        environment = {**shared, RANK: str(k)}
        if library == "cupy":
            environment["CUDA_VISIBLE_DEVICES"] = visible[k]
        # Rank k > 0 speaks into a file. Its standard input is a pipe that ends when we do, however we end.
        with heard[k].open("wb") as file:
            children.append(subprocess.Popen(
                [sys.executable, "-m", "duoln", *words], env=environment, stdin=subprocess.PIPE,
                stdout=None if k == 0 else file, stderr=None if k == 0 else file, start_new_session=True))
    return children


def end_with_launcher() -> None:
    """In a rank: end as soon as the process that started it is gone."""
    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):  # not through sys.stdin, whose lock would be held at our own end
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _free_addresses(count: int) -> list[str]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]


def _wait(children: list[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all to end well, or for one to end badly: the first that did, or None."""
    while True:
        codes = [child.poll() for child in children]
        failed = [k for k, code in enumerate(codes) if code]
        if failed:
            # One that was killed is the cause; one that ended by itself may have noticed that.
            return min(failed, key=lambda k: (codes[k] or 0) > 0)
        if all(code == 0 for code in codes):
            return None
        time.sleep(_WATCH_SECONDS)


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + _GRACE_SECONDS
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(deadline - time.monotonic(), 0.0))
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()


def _how_it_ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def _last_words(heard: Path) -> str:
    lines = [line for line in heard.read_text(encoding="utf-8", errors="replace").splitlines()
             if line.strip() and not line.startswith("[ring]")]
    return "".join(f"\n  it said: {line}" for line in lines[-3:])
