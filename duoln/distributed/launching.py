"""Starts the ranks of one machine, and ends all of them when one of them, or this process, ends."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from duoln.distributed.rank_info import COUNT, LAUNCHERS, LISTENER, MEETING, RANK, TOKEN
from duoln.system import processes
from duoln.system.stopping import on_stop_signal

LIFELINE = "DUOLN_RANK_LIFELINE"
"""Set for each rank: the descriptor of a pipe. The process that started the rank has its other end, which closes when
that process ends."""

_WATCH_SECONDS = 0.05
_GRACE_SECONDS = 3.0
"""The time that the other ranks have to notice that one has ended, and to report it."""


class Children:
    """The ranks that this process has started; at the end of a `with` statement all of them have ended."""

    def __init__(self) -> None:
        self.ranks: list[subprocess.Popen[bytes]] = []
        self.sent: list[int] = []
        """The signals that were passed to rank 0."""
        self._lifeline: int | None = None
        self._kept = contextlib.ExitStack()

    def __enter__(self) -> Children:
        self._kept.enter_context(processes.exit_codes_kept())
        return self

    def __exit__(self, *error: object) -> None:
        with self._kept:
            self._end()

    def _end(self) -> None:
        deadline = time.monotonic() + _GRACE_SECONDS
        for child in self.ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(deadline - time.monotonic(), 0.0))
        for child in self.ranks:
            if child.poll() is None:
                child.kill()
            child.wait()
        if self._lifeline is not None:
            os.close(self._lifeline)

    def start(self, words: Sequence[str], heard: Sequence[Path], stdout: int | None = None) -> None:
        """Start the command line `words` once for each file of `heard`.

        Rank 0 writes to our output, or its stdout to `stdout` if that is given; the others write to their files. All
        get a secret that was made for this run.
        """
        count = len(heard)
        token = secrets.token_hex(32)
        watched, self._lifeline = os.pipe()
        with socket.create_server(("127.0.0.1", 0), backlog=count + 16) as listener, os.fdopen(watched, "rb"):
            shared = processes.environment({COUNT: str(count), TOKEN: token, LIFELINE: str(watched),
                                            MEETING: f"127.0.0.1:{listener.getsockname()[1]}"})
            for k in range(count):
                environment = {**shared, RANK: str(k), LAUNCHERS["duoln"].local: str(k)}
                descriptors = [watched]
                if k == 0:
                    environment[LISTENER] = str(listener.fileno())
                    descriptors.append(listener.fileno())
                with heard[k].open("wb") as file:
                    self.ranks.append(subprocess.Popen(
                        processes.command("duoln", *words), env=environment, stdin=subprocess.DEVNULL,
                        stdout=file if k else stdout, stderr=file if k else None, start_new_session=True,
                        pass_fds=descriptors))

    def wait(self) -> int | None:
        """Wait until all ranks have ended without error, or one has failed. The result is the first that failed, or
        None.
        """
        while True:
            codes = [child.poll() for child in self.ranks]
            failed = [k for k, code in enumerate(codes) if code]
            if failed:
                # A rank that was killed is the cause; a rank that ended by itself may have ended because of that.
                return min(failed, key=lambda k: (codes[k] or 0) > 0)
            if all(code == 0 for code in codes):
                return None
            time.sleep(_WATCH_SECONDS)

    @contextlib.contextmanager
    def receive_signals(self) -> Iterator[None]:
        """Pass Ctrl-C, SIGTERM and SIGHUP to rank 0, which stops after its update and tells the others. A signal that
        this process ignores from its start, such as SIGHUP under `nohup`, stays ignored.
        """
        def hand_on(number: int) -> None:
            self.sent.append(number)
            if not self.ranks:
                raise KeyboardInterrupt
            with contextlib.suppress(ProcessLookupError):
                self.ranks[0].send_signal(number)

        with on_stop_signal(hand_on):
            yield


def end_with_launcher() -> None:
    """In a rank that `Children.start` started: end as soon as the process that started it is gone."""
    if LIFELINE not in os.environ:
        return
    lifeline = int(os.environ.pop(LIFELINE))

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
