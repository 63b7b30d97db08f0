"""The exit code of a command. An error becomes one message on stderr, and with --json also one JSON document."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from duoln.cli import console, streams
from duoln.cli.parser import ParsedError, wants_json
from duoln.errors import (
    CheckpointWarning,
    CompileWarning,
    DuolnError,
    GradientWarning,
    Interrupted,
    MemoryExhaustedError,
    NotFiniteWarning,
    OutputError,
    ScheduleWarning,
    words_of,
)
from duoln.system.stopping import EXIT_CODE, end_quietly_on_interrupt, raise_on_interrupt

_SIGNALS = 128
"""Exit codes above this one come from signals that asked the command to stop; they are not failures."""

def guarded(run: Callable[[], int], words: Sequence[str] = ()) -> int:
    """The exit code of a command.

    Args:
        run: the command.
        words: its command line, which says whether errors are written as JSON too.
    """
    with streams.claimed() as claim, _warnings_said(console.say):
        error: BaseException
        try:
            raise_on_interrupt()
            return run()
        except ParsedError as end:
            code, message, error = _code_of(end), end.message, end
        except SystemExit as end:
            code, message, error = 1, f"expected nobody but duoln to end the program, found SystemExit: {end.code}", end
        except Interrupted as stop:
            code, message, error = stop.exit_code, words_of(stop), stop
        except DuolnError as failure:  # the exit code of its class, because an error of a plug-in may carry any code
            code, message, error = type(failure).exit_code, words_of(failure), failure
        except KeyboardInterrupt as stop:
            code, message, error = EXIT_CODE, "interrupted", stop
        except MemoryError as lack:
            code, message, error = MemoryExhaustedError.exit_code, f"no memory left: {lack}", lack
        except OSError as refusal:  # the system's, such as of a disk that fails: no mistake of ours
            code, message, error = 1, f"{type(refusal).__name__}: {words_of(refusal)}", refusal
        except Exception as unexpected:
            console.say(traceback.format_exc().rstrip())
            code, message, error = 1, f"{type(unexpected).__name__}: {words_of(unexpected)}", unexpected
        if os.environ.get("DUOLN_TRACEBACK") == "1" and isinstance(error, DuolnError | OSError):
            console.say("".join(traceback.format_exception(error)).rstrip())
        if message and not (isinstance(error, OutputError) and error.unread):
            console.say(message if isinstance(error, ParsedError) else f"duoln: {message}",
                        style="yellow" if code > _SIGNALS else "bold red")
        if message and wants_json(words) and not claim.written and not isinstance(error, OutputError):
            with contextlib.suppress(OutputError):  # stderr has the message, and the exit code stays the same
                console.put_json({"error": as_document(error, message, code)})
        return code


@contextlib.contextmanager
def _warnings_said(say: Callable[[str], None]) -> Iterator[None]:
    """Within this context duoln's own warnings are remarks; those of other libraries look as Python shows them."""
    with warnings.catch_warnings():
        by_python = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **named: Any) -> None:
            if issubclass(category, CheckpointWarning | CompileWarning | GradientWarning | NotFiniteWarning |
                          ScheduleWarning):
                say(f"warning: {message}")
            else:
                by_python(message, category, *place, **named)

        warnings.showwarning = show
        yield


def as_document(error: BaseException, message: str, code: int) -> dict[str, Any]:
    """An error in the form of `--json`: its class, its message, and the exit code."""
    name = "UsageError" if isinstance(error, ParsedError) else type(error).__name__
    return {"class": name, "message": message, "exit_code": code}


def leave(code: int) -> NoReturn:
    """End the process with an exit code."""
    end_quietly_on_interrupt()
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # Python's end would give Ctrl-C its first effect
    sys.exit(code)


def _code_of(end: SystemExit) -> int:
    return end.code if isinstance(end.code, int) else 0
