"""Proof of the fused rules of a GPU before they are trusted there.

On a device that this installation has not seen, a rule is compared with float64 before its first use, in a process of
its own with a time limit (`duoln.testing.prover`). So a kernel that is wrong, hangs, or ends its context costs its
speed and nothing else: the rule is set aside, and the next one runs. Verdicts are kept in the cache folder, for one
model of device, driver, library and text of the kernels.

DUOLN_PROVE=0 trusts every rule that has no verdict, DUOLN_PROVE=again makes them anew.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import inspect
import json
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from duoln.backends.protocol import NO_CASE, PROVED, SET_ASIDE, TRUSTED, Array, Backend
from duoln.core.rule import Rule
from duoln.errors import CheckpointError
from duoln.kernels import source
from duoln.system import processes
from duoln.system.filesystem import lock, make_folder, write_atomically
from duoln.system.paths import cache_folder
from duoln.system.processes import Worker, WorkerLostError
from duoln.system.visible import say

_FLOAT32 = "float32"
_START_SECONDS = 60.0
_CASE_SECONDS = (20.0, 60.0)
"""Time limits of a case, whose kernels the process compiles; the second is for one that hung on a busy machine."""
_IDLE_SECONDS = 30.0
"""The idle time after which the process ends, because it holds memory of the device."""
_TEXTS = (".cu", ".cuh", ".h", ".metal", ".py")
_FACTS = ("library", "device", "compute_capability", "driver", "compiler")
"""The facts of a backend's `info` that identify the device and its software."""


Key = tuple[str, str, str, str]
"""Operator, rule, dtype of storage and variant."""


class Verdict(NamedTuple):
    """The verdict on a rule on this device."""

    op: str
    rule: str
    stored: str
    """The dtype in which its values are stored: "float32", "float16" or "bfloat16"."""
    variant: str
    """The `norm` of a recurrent layer; else empty."""
    state: str
    """"proved", "set aside" or "trusted"."""
    reason: str = ""
    """The error, or the reason why it is trusted without a proof."""
    case: str = ""
    """The case that was wrong."""
    text: str = ""
    """The hash of the files of a plug-in's rule; empty for a rule of the library."""

    @property
    def name(self) -> str:
        """The rule in words."""
        return " ".join([*filter(None, (self.op, self.variant)), f"'{self.rule}'",
                         *([] if self.stored == _FLOAT32 else [f"of {self.stored}"])])


class Proofs:
    """The verdicts on the rules of one backend, found when a rule is first used.

    Args:
        backend: of the device.
        worker: makes a process that proves; tests give another one.
    """

    def __init__(self, backend: Backend, worker: Callable[[], Worker] | None = None) -> None:
        self._backend, self._new_worker = backend, worker or (lambda: _prover(backend.name))
        self._lock = threading.Lock()
        self._known: dict[Key, Verdict] = {}
        """Verdicts that this process uses."""
        self._worker: Worker | None = None
        self._process = os.getpid()
        self._idle: threading.Timer | None = None
        self._has_said = False
        self._no_worker = ""
        """The reason why no process can prove; empty while one can."""
        atexit.register(self._end)

    def refusal(self, op: str, rule: Rule, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> str | None:
        """The reason why a rule must not run here; None if it may. The first call of a rule may take seconds."""
        narrow = self._backend.narrow
        stored = next((self._backend.dtype(x) for x in arrays if getattr(x, "dtype", None) in narrow), _FLOAT32)
        key = op, rule.name, stored, attrs.get("norm", "")
        verdict = self._known.get(key)
        if verdict is None:
            verdict = self._find(key, rule)
        return f"it was set aside on this device: {verdict.reason}" if verdict.state == SET_ASIDE else None

    def summary(self) -> dict[str, list[str]]:
        """The rules of this process by their state."""
        states: dict[str, list[str]] = {}
        for verdict in list(self._known.values()):  # other threads add to it
            states.setdefault(verdict.state, []).append(verdict.name)
        return states

    # Finding --------------------------------------------------------------------------------------
    def _find(self, key: Key, rule: Rule) -> Verdict:
        with self._lock:
            if key not in self._known:
                self._known[key] = self._decide(key, text_of(rule))
            return self._known[key]

    def _decide(self, key: Key, text: str) -> Verdict:
        asked = os.environ.get("DUOLN_PROVE")
        if asked == "0":
            return Verdict(*key, TRUSTED, "DUOLN_PROVE is 0")
        if asked != "again" and (kept := _look_up(self._initial_verdicts, key, text)):
            return kept
        with _lock_proofs():
            if asked != "again" and (kept := _look_up(self._read(), key, text)):  # another rank has proved it meanwhile
                return kept
            verdict = self._prove(key)._replace(text=text)
            if verdict.state != TRUSTED or verdict.reason == NO_CASE:
                self._write([verdict])
        if verdict.state == SET_ASIDE:
            say(f"{verdict.name} is set aside on {self._backend.device}, the next rule runs: "
                f"{verdict.case}: {_first_line(verdict.reason)} (`duoln doctor` says more)")
        return verdict

    @cached_property
    def _initial_verdicts(self) -> list[Verdict]:
        """The verdicts that were there at the first use of a rule."""
        return self._read()

    def _prove(self, key: Key) -> Verdict:
        if not self._has_said:
            self._has_said = True
            say(f"proving the kernels on {self._backend.device}, once; verdicts are kept in {_folder()}")
        request = {"kind": "rule", **dict(zip(Verdict._fields, key, strict=False))}
        verdict = Verdict(*key, TRUSTED)
        for seconds in _CASE_SECONDS:
            worker = self._ready()
            if worker is None:
                return verdict._replace(reason=self._no_worker)
            try:
                failed = worker.ask(request, seconds)
            except WorkerLostError as lost:
                self._end()
                state = TRUSTED if lost.from_outside else SET_ASIDE
                verdict = verdict._replace(state=state, reason=str(lost), case=lost.doing)
                if not lost.hung:
                    return verdict
                continue
            except BaseException:
                self._end()  # its answer would come for another question
                raise
            self._start_idle_timer()
            if failed is None:
                return Verdict(*key, PROVED)
            if failed["ended"]:
                self._end()
            state = SET_ASIDE if failed["case"] else TRUSTED
            return Verdict(*key, state, failed["reason"], failed["case"])
        return verdict

    def _ready(self) -> Worker | None:
        if self._process != os.getpid():
            self._worker, self._process = None, os.getpid()  # that of the process from which this one forked
        if self._idle is not None:
            self._idle.cancel()
        if self._worker is None and not self._no_worker:
            try:
                self._worker = self._new_worker()
                self._worker.ready(_START_SECONDS)
            except (WorkerLostError, OSError) as error:
                self._worker, self._no_worker = None, str(error)
                say("rules are trusted without a proof, for which no second process can use the device: "
                    f"{_first_line(self._no_worker)}")
            except BaseException:
                self._end()
                raise
        return self._worker

    def _start_idle_timer(self) -> None:
        self._idle = threading.Timer(_IDLE_SECONDS, self._end_idle)
        self._idle.daemon = True
        self._idle.start()

    def _end_idle(self) -> None:
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    # What is kept ---------------------------------------------------------------------------------
    def kept(self) -> list[dict[str, str]]:
        """All verdicts of earlier processes on this device, as plain data."""
        return [verdict._asdict() for verdict in self._read()]

    def learn(self, verdicts: Iterable[Mapping[str, str]]) -> None:
        """Keep verdicts beside those that are there."""
        with _lock_proofs():
            self._write(Verdict(**verdict) for verdict in verdicts)

    def _write(self, verdicts: Iterable[Verdict]) -> None:
        """Keep verdicts; if they cannot be written, the next process proves again."""
        every = {v[:4]: v for v in (*self._read(), *verdicts)}
        content = {"device": _device_facts(self._backend), "verdicts": [v._asdict() for v in every.values()]}
        try:
            make_folder(_folder())
            write_atomically(self._file, json.dumps(content, indent=1).encode())
        except CheckpointError as error:
            say(f"the verdicts cannot be kept: {error}")

    def _read(self) -> list[Verdict]:
        try:
            content: Mapping[str, Any] = json.loads(self._file.read_text(encoding="utf-8"))
            return [Verdict(**entry) for entry in content["verdicts"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []  # what cannot be read is proved again

    @cached_property
    def _file(self) -> Path:
        facts = json.dumps(_device_facts(self._backend), sort_keys=True)
        return _folder() / f"{hashlib.sha256(facts.encode()).hexdigest()[:16]}.json"


def _prover(backend: str) -> Worker:
    return Worker(processes.command("duoln.testing.prover", "--backend", backend), {"DUOLN_PROVE": "0"})


def _look_up(verdicts: Iterable[Verdict], key: Key, text: str) -> Verdict | None:
    return next((v for v in verdicts if v[:4] == key and v.text == text), None)


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def _folder() -> Path:
    return cache_folder() / "proofs"


@contextlib.contextmanager
def _lock_proofs() -> Iterator[None]:
    """In its block no other process proves or writes: ranks agree on what runs, and none loses what another found.

    Where the folder cannot be written nothing is kept, so nothing is locked.
    """
    try:
        make_folder(_folder())
        descriptor = os.open(_folder() / "lock", os.O_CREAT | os.O_RDWR, 0o600)
    except (OSError, CheckpointError):
        yield
        return
    try:
        lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def _device_facts(backend: Backend) -> dict[str, str]:
    """The device and what compiles and launches for it."""
    info = backend.info()
    return {"backend": backend.name, "macos": platform.mac_ver()[0],
            "kernels": _fingerprint(*(os.path.join(place, name) for place, _, names in os.walk(source.FOLDER)
                                      for name in names)),
            **{name: info[name] for name in _FACTS if name in info}}


def text_of(rule: Rule) -> str:
    """A hash of the files beside a rule that is not the library's; empty for one of the library."""
    module = inspect.unwrap(rule.vjp or rule.forward).__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or (module.startswith("duoln.") and not module.startswith("duoln.plugins.")):
        return ""
    folder = os.path.dirname(file)
    beside = [file] if module == "__main__" else [os.path.join(folder, name) for name in os.listdir(folder)]
    return _fingerprint(*beside)


def _fingerprint(*files: str) -> str:
    """A hash of the sources' names, sizes and times of change; to read the files would take 15 ms at each start."""
    seen = []
    for file in files:
        with contextlib.suppress(OSError):  # a link that leads nowhere is nobody's source
            if file.endswith(_TEXTS):
                seen.append((file, (about := os.stat(file)).st_size, about.st_mtime_ns))
    return hashlib.sha256(repr(sorted(seen)).encode()).hexdigest()
