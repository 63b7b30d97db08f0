"""The errors of duoln. Each class carries the exit code that the command line gives for it."""

from __future__ import annotations

import copyreg
import signal
from typing import Any

__all__ = [
    "AxisIndexError", "BackendError", "CallError", "CheckpointError", "CheckpointWarning", "CompileError",
    "CompileWarning", "DataEntryError", "DataError", "DataFormatError", "DataMissingError", "DivergedError",
    "DtypeError", "DuolnError", "GradientError", "GradientWarning", "Interrupted", "KernelError",
    "MemoryExhaustedError", "MixedBackendError", "NotFiniteError", "NotFiniteWarning", "OutputError", "PluginError",
    "RankError", "RecordError", "ScheduleWarning", "ShapeError", "TaskError", "UsageError",
]


class DuolnError(Exception):
    """Base of every error that duoln raises on purpose."""

    exit_code = 1

    def __reduce__(self) -> tuple[Any, ...]:
        """The text and the attributes. Python would call the constructor with the text, which few constructors take,
        and a process pool waits forever for an error that it cannot unpickle.
        """
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]


def words_of(error: BaseException) -> str:
    """The text of an error; an error of a plug-in may fail to give its text."""
    try:
        return str(error).strip()
    except (KeyboardInterrupt, MemoryError):
        raise
    except BaseException as failure:
        return f"its message cannot be shown: it raises {type(failure).__name__}"


class UsageError(DuolnError, ValueError):
    """An unknown task, variant, preset, setting or flag, or a setting outside its range."""

    exit_code = 2


class BackendError(DuolnError):
    """A requested backend cannot be used; the message gives the reason."""

    exit_code = 3


class DataError(DuolnError):
    """Data that is missing or cannot be fetched."""

    exit_code = 4


class DataMissingError(DataError):
    """A file that is in no folder and cannot be downloaded from any mirror."""


class DataFormatError(DataError):
    """A file whose content breaks its format."""

    def __init__(self, file: object, offset: int, expected: object, actual: object) -> None:
        self.file, self.offset, self.expected, self.actual = file, offset, expected, actual
        super().__init__(f"{file}: at byte {offset}: expected {expected}, found {actual}")


class DataEntryError(DataFormatError):
    """As `DataFormatError`, for files that people read by lines or entries: the message names one of them."""

    def __init__(self, file: object, place: str, expected: object, actual: object) -> None:
        super().__init__(file, 0, expected, actual)
        self.place = place
        self.args = (f"{file}: {place}: expected {expected}, found {actual}",)


class RecordError(DataError):
    """A record of measurements that breaks its schema."""

    def __init__(self, file: object, key: str, expected: object, actual: object) -> None:
        self.file, self.key, self.expected, self.actual = file, key, expected, actual
        super().__init__(f"{file}: {key}: expected {expected}, found {actual}")


class DivergedError(DuolnError):
    """The loss or a weight is no longer finite."""

    exit_code = 5


class NotFiniteError(DivergedError):
    """A result or an argument of an operator is not finite."""


class MemoryExhaustedError(DuolnError):
    """The device has no memory left for this step."""

    exit_code = 6


def exit_code(number: int) -> int:
    """The exit code of a command that a signal ended, as a shell gives it."""
    return 128 + number


class Interrupted(DuolnError):
    """The user, or a scheduler, asked to stop; a checkpoint was written.

    Args:
        message: what was done and how to go on.
        number: the signal's; the exit code is 128 more: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP.
    """

    def __init__(self, message: str, number: int = signal.SIGINT) -> None:
        super().__init__(message)
        self.number, self.exit_code = number, exit_code(number)


class OutputError(DuolnError):
    """The result cannot be written to stdout. The files of a run are complete.

    Attributes:
        unread: True if the reader of our stdout has closed it, as `head` does after its last line.
    """

    exit_code = 7

    def __init__(self, reason: Exception) -> None:
        self.unread = isinstance(reason, BrokenPipeError)
        super().__init__(f"[stdout] the result cannot be written: {getattr(reason, 'strerror', None) or reason}")


class ShapeError(DuolnError, ValueError):
    """Arrays whose shapes do not fit the operation."""


class AxisIndexError(ShapeError, IndexError):
    """An index beyond the end of an axis. Python ends an iteration by index at this error."""


class DtypeError(DuolnError, TypeError):
    """Arrays whose dtypes do not fit the operation, or differ: nothing is promoted silently."""


class CallError(DuolnError, TypeError):
    """A call whose arguments do not fit the signature: too many by position, one missing, or one of no such name."""


class MixedBackendError(DuolnError, TypeError):
    """Arrays of two array libraries in one operation."""


class GradientError(DuolnError, RuntimeError):
    """A derivative that duoln does not compute, such as a gradient inside a gradient."""


class GradientWarning(UserWarning):
    """Inside a gradient a number was read, which is a constant there, or a Dropout had no mask."""


class CheckpointWarning(UserWarning):
    """A checkpoint cannot be read; an older one serves in its place."""


class CompileWarning(UserWarning):
    """A compiled step runs in a slower way than its device could; the message has the reason."""


class NotFiniteWarning(UserWarning):
    """A metric that is no finite number."""


class ScheduleWarning(UserWarning):
    """The learning rate is next to 0 for the rest of a run; its schedule is that of a shorter one."""


class CompileError(DuolnError, RuntimeError):
    """A step that breaks the contract of `compile`: pure, no host reads, stable trees and shapes."""


class CheckpointError(DuolnError):
    """A checkpoint or run folder that cannot be written, read or resumed from."""


class RankError(DuolnError):
    """A process that cannot reach, or has lost, the others that train the same model."""


class PluginError(DuolnError):
    """A plug-in that cannot be loaded, or two plug-ins that claim one name."""


class TaskError(DuolnError):
    """A task's own code raised an exception; the message names the task, its distribution and the method."""


class KernelError(DuolnError, RuntimeError):
    """A GPU kernel that does not compile, cannot be launched, or was given an argument that it does not take."""


def __dir__() -> list[str]:
    return sorted(__all__)
