"""From a command to its exit code: errors become one message on stderr."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from duoln.errors import DuolnError
from duoln.starting import EXIT_CODE, raise_on_interrupt

_SIGNALS = 128
"""Exit codes above are those of signals that asked to stop: no failure."""


def guarded(run: Callable[[], int]) -> int:
    """The exit code of a command."""
    from duoln import console

    try:
        raise_on_interrupt()
        return run()
    except DuolnError as error:
        if os.environ.get("DUOLN_TRACEBACK") == "1":
            traceback.print_exc()
        console.say(f"duoln: {error}", style="yellow" if error.exit_code > _SIGNALS else "bold red")
        return error.exit_code
    except KeyboardInterrupt:
        console.say("duoln: interrupted", style="yellow")
        return EXIT_CODE
    except BrokenPipeError:
        # The reader of our stdout is gone, as after `duoln list | head -1`; nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
