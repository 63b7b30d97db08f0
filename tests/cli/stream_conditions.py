"""The conditions of a command's streams: closed, full or gone, and environment variables with unusual values.

Each condition has a line of shell, in which COMMAND stands for the command, variables, and the expected results: the
exit code of a command that only writes remarks, and the exit code of a command with a result for stdout.
"""

from types import MappingProxyType
from typing import NamedTuple

NO_READER = "mkfifo pipe; (: < pipe) & exec 3> pipe; wait"
"""Descriptor 3 is a pipe without a reader."""
LOST = 7
"""The result could not be written; everything else was done."""


class Condition(NamedTuple):
    line: str
    environment: dict[str, str] = MappingProxyType({})
    talking: int = 0
    result: int = 0
    readable: bool = False
    """Whether stdout arrives, so that it can be looked at."""


def _variables(**environment: str) -> Condition:
    return Condition("COMMAND", environment, readable=True)


STREAMS = {
    "nothing special": Condition("COMMAND", readable=True),
    "stdout full": Condition("COMMAND > /dev/full", result=LOST),
    "stderr full": Condition("COMMAND 2> /dev/full", readable=True),
    "stdout closed": Condition("COMMAND >&-", result=LOST),
    "stderr closed": Condition("COMMAND 2>&-", readable=True),
    "stdin closed": Condition("COMMAND <&-", readable=True),
    "all closed": Condition("COMMAND <&- >&- 2>&-", result=LOST),
    "stdout for reading only": Condition("COMMAND 1< /dev/null", result=LOST),
    "stderr for reading only": Condition("COMMAND 2< /dev/null", readable=True),
    "stdout nowhere": Condition("COMMAND > /dev/null"),
    "stdout's reader gone": Condition(f"{NO_READER}; COMMAND >&3", result=LOST),
    "stderr's reader gone": Condition(f"{NO_READER}; COMMAND 2>&3", readable=True),
    "stdout is stderr": Condition("COMMAND >&2"),
    "stdout a file": Condition("COMMAND > written; code=$?; cat written; exit $code", readable=True),
    "a file of limited size": Condition("(trap '' XFSZ; ulimit -f 0; COMMAND > written)", result=LOST, talking=1),
}

VARIABLES = {
    "C locale": _variables(LC_ALL="C"),
    "C locale, no coercion": _variables(LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0"),
    "ASCII": _variables(PYTHONIOENCODING="ascii"),
    "Latin 1": _variables(PYTHONIOENCODING="latin-1:strict"),
    "a dumb terminal": _variables(TERM="dumb"),
    "an unknown terminal": _variables(TERM="\x1b[31m"),
    "20 columns": _variables(COLUMNS="20"),
    "0 columns": _variables(COLUMNS="0"),
    "columns in superscript": _variables(COLUMNS="\u00b2"),
    "columns without end": _variables(COLUMNS="9" * 5000),
    "no colour": _variables(NO_COLOR="1"),
    "forced colour": _variables(FORCE_COLOR="1"),
    "a terminal that is none": _variables(TTY_COMPATIBLE="1", TTY_INTERACTIVE="1"),
    "optimised": _variables(PYTHONOPTIMIZE="2"),
    "development mode": _variables(PYTHONDEVMODE="1", PYTHONWARNINGS="default"),
    "no home": _variables(HOME=""),
    "a home that is not there": _variables(HOME="/nowhere/at/all", XDG_CACHE_HOME="/nowhere"),
}

CONDITIONS = {**STREAMS, **VARIABLES}
EVERY_DAY = ("stdout full", "stderr full", "all closed", "stdout's reader gone", "columns in superscript")
"""What the ordinary suite runs too: one of each cause."""
