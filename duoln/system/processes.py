"""Python processes that duoln starts, and a worker: one for work which may hang or end it.

`python -m` puts the working folder before all others, so that a file `numpy.py` in it would be executed in place of
NumPy. A child is started with `-P`, which leaves that folder out, and takes the rest of the path from its parent.

    worker = Worker(command("duoln.testing.prover", "--backend", "cupy"))
    answer = worker.ask({"kind": "case", "name": "take 20 of 7 x 3"}, seconds=20)

Both sides write a line of JSON at a time. The worker's side, `serve`, says by `doing` what it is about to begin.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from duoln.errors import DuolnError

_OURS = Path(__file__).resolve().parents[2]
"""The folder from which duoln is imported."""
_KILL_SECONDS = 10.0
_LAST_CHARACTERS = 4000
"""The number of last characters of a lost process's stderr that an error shows."""


def command(module: str, *words: str) -> list[str]:
    """The command that runs a module of duoln as a program; to be started in `environment()`."""
    return [sys.executable, "-P", "-m", module, *words]


@contextmanager
def exit_codes_kept() -> Iterator[None]:
    """Let the system keep how children end, also where SIGCHLD was ignored when this process started, as some
    supervisors do: `subprocess` would report exit code 0 for a child that was killed.
    """
    ignored = (hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread()
               and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN)
    if ignored:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a child: ours, our module path, and `more`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(module_path(sys.path, Path.cwd())), **(more or {})}


def module_path(path: Sequence[str], here: Path) -> list[str]:
    """A module path, such as `sys.path`, without what Python put at its front because of where it was started.

    The working folder stays if duoln itself is imported from it, and if it stands in the path once more: then the user
    put it there.
    """
    first = list(path[:1])
    unasked = not sys.flags.safe_path and bool(first) and _same(first[0] or here, here) and not _same(here, _OURS)
    return [entry or str(here) for entry in path[1 if unasked else 0:]]


def _same(one: str | Path, two: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(two)


class WorkerLostError(DuolnError):
    """The worker gave no answer: it hung or it ended.

    Attributes:
        doing: its own last words about its work.
        hung: True if it was alive and did not answer.
        from_outside: True if another program ended it, as a system without memory does.
    """

    def __init__(self, reason: str, doing: str, hung: bool = False, from_outside: bool = False) -> None:
        super().__init__(reason)
        self.doing, self.hung, self.from_outside = doing, hung, from_outside


class Worker:
    """A process that answers one request after the other.

    Args:
        program: its command line; it calls `serve`.
        more: variables that it gets besides ours.
    """

    def __init__(self, program: Sequence[str], more: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # `end` closes it
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                                         env=environment(more), text=True, start_new_session=True)
        self._parent = os.getpid()
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._doing = "to start"
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def ready(self, seconds: float) -> None:
        """Wait until it answers requests. Raises as `ask`."""
        self.ask({}, seconds)

    def ask(self, request: Mapping[str, Any], seconds: float) -> Any:
        """The answer to a request.

        Args:
            request: the argument of the worker's function, see `serve`.
            seconds: the longest time without a line from the worker; `doing` writes one.

        Raises:
            WorkerLostError: it hung or ended, and has been killed. An interrupt ends it too, because the answer that
                comes later would be taken for that of the next request.
        """
        try:
            return self._answer(request, seconds)
        except BaseException:
            self.end()
            raise

    def _answer(self, request: Mapping[str, Any], seconds: float) -> Any:
        assert self._process.stdin is not None
        with suppress(OSError):  # it has ended: what follows says why
            self._process.stdin.write(json.dumps(dict(request)) + "\n")
            self._process.stdin.flush()
        until = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(until - time.monotonic(), 0.01))
            except queue.Empty:
                raise WorkerLostError(f"hung: no answer in {seconds:.0f} s", self._doing, hung=True) from None
            if line is None:
                raise self._lost()
            try:
                words = json.loads(line)
            except ValueError:
                continue  # cut off by its end, which comes next
            if "answer" in words:
                return words["answer"]
            self._doing, until = words["doing"], time.monotonic() + seconds

    def _lost(self) -> WorkerLostError:
        try:
            code = self._process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            return WorkerLostError("its process closed its output and did not end", self._doing, hung=True)
        self._reader.join()
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip()[-_LAST_CHARACTERS:]
        ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return WorkerLostError(f"its process ended with {ended}" + (f":\n{last}" if last else ""), self._doing,
                               from_outside=-code in (signal.SIGKILL, signal.SIGTERM))

    def end(self) -> None:
        """Kill the process and those that it started."""
        if self._errors.closed or self._parent != os.getpid():
            return  # its number may be another process's by now; and a fork has no process of its parent's to end
        with suppress(ProcessLookupError):  # all of them have ended
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            return  # it is inside a driver, which ends it later or never
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            assert pipe is not None
            with suppress(OSError):  # what was not yet written has no reader
                pipe.close()


class _Output:
    """The worker's side of the pipe. The prints of libraries go to stderr."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        sys.stdout = sys.stderr

    def say(self, **words: Any) -> None:
        print(json.dumps(words), file=self._out, flush=True)


def serve(begin: Callable[[], Callable[[dict[str, Any], Callable[[str], None]], Any]]) -> None:
    """Answer requests until the caller is gone, even while one hangs.

    Args:
        begin: prepares, and gives the function from a request and `doing` to the answer.
    """
    output = _Output()
    requests = _requests()
    next(requests)  # of `ready`
    answer = begin()
    output.say(answer=None)
    for request in requests:
        output.say(answer=answer(request, lambda what: output.say(doing=what)))


def _requests() -> Iterator[dict[str, Any]]:
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)  # the caller is gone, and the main thread may hang

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield json.loads(lines.get())
