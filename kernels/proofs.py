"""Proof of the fused rules of a GPU before they are trusted there.

On a device that this installation has not seen, a rule is compared with float64 before its first use, in a process of
its own with a time limit (`duoln.testing.prover`). So a kernel that is wrong, hangs, or ends its context costs its
speed and nothing else: the rule is set aside, and the next one runs. Verdicts are kept in the cache folder, for one
model of device, driver, library and text of the kernels.

DUOLN_PROVE=0 trusts every rule that has no verdict, DUOLN_PROVE=again makes them anew.
"""

from __future__ import annotations

import atexit
import hashlib
import inspect
import json
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from duoln.backends.protocol import PROVED, SET_ASIDE, TRUSTED, Array, Backend
from duoln.core.rule import Rule
from duoln.errors import CheckpointError
from duoln.kernels import source
from duoln.kernels.native import remarks
from duoln.system import processes
from duoln.system.cache import cache_folder
from duoln.system.filesystem import make_folder, write_atomically
from duoln.system.worker import Worker, WorkerLostError

_FLOAT32 = "float32"
_START_SECONDS, _CASE_SECONDS = 60.0, 20.0
"""For the process to start, and for a case, whose kernels it compiles."""
_IDLE_SECONDS = 30.0
"""After which the process ends: it holds memory of the device."""
_TEXTS = (".cu", ".cuh", ".h", ".metal", ".py")
_OURS = "duoln.kernels."
_FACTS = ("library", "device", "compute_capability", "driver")
"""Of what a backend says about itself."""


Key = tuple[str, str, str, str]
"""Operator, rule, dtype of storage and variant."""


class Verdict(NamedTuple):
    """What is known of a rule on this device."""

    op: str
    rule: str
    stored: str
    """In what its values are stored: "float32", "float16" or "bfloat16"."""
    variant: str
    """Of a recurrent layer, its `norm`; else empty."""
    state: str
    """"proved", "set aside" or "trusted"."""
    reason: str = ""
    """What was wrong, or why it is trusted without a proof."""
    case: str = ""
    """The case that was wrong."""
    text: str = ""
    """Of what a plug-in's rule was made; empty for a rule of the library."""

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
        self._kept: dict[Key, Verdict] | None = None
        """Those of earlier processes, read at the first use."""
        self._worker: Worker | None = None
        self._idle: threading.Timer | None = None
        self._has_said = False
        self._no_worker = ""
        """Why no process can prove; empty while one can."""
        atexit.register(self._end)

    def reason(self, op: str, rule: Rule, arrays: Sequence[Array], attrs: Mapping[str, Any]) -> str | None:
        """Why a rule must not run here; None if it may. The first call for a rule and a dtype may take seconds."""
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
        for verdict in self._known.values():
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
        if self._kept is None:
            self._kept = {} if asked == "again" else {v[:4]: v for v in self._read()}
        if key in self._kept and self._kept[key].text == text:
            return self._kept[key]
        verdict = self._prove(key)._replace(text=text)
        if verdict.state == SET_ASIDE:
            remarks.say(f"{verdict.name} is set aside on {self._backend.device}, the next rule runs: "
                        f"{verdict.case}: {_first_line(verdict.reason)} (`duoln doctor` says more)")
        if verdict.state != TRUSTED:
            self.learn([verdict._asdict()])
        return verdict

    def _prove(self, key: Key) -> Verdict:
        if not self._has_said:
            self._has_said = True
            remarks.say(f"proving the kernels on {self._backend.device}, once; verdicts are kept in {_folder()}")
        worker = self._ready()
        if worker is None:
            return Verdict(*key, TRUSTED, self._no_worker)
        try:
            failed = worker.ask({"kind": "rule", **dict(zip(Verdict._fields, key, strict=False))}, _CASE_SECONDS)
        except WorkerLostError as lost:
            self._worker = None
            return Verdict(*key, SET_ASIDE, str(lost), lost.doing)
        self._wait_no_longer()
        if failed is None:
            return Verdict(*key, PROVED)
        if not failed["case"]:
            return Verdict(*key, TRUSTED, failed["reason"])
        if failed["ended"]:
            self._end()
        return Verdict(*key, SET_ASIDE, failed["reason"], failed["case"])

    def _ready(self) -> Worker | None:
        if self._idle is not None:
            self._idle.cancel()
        if self._worker is None and not self._no_worker:
            self._worker = self._new_worker()
            try:
                self._worker.ready(_START_SECONDS)
            except WorkerLostError as lost:
                self._worker, self._no_worker = None, str(lost)
                remarks.say("rules are trusted without a proof, for which no second process can use the device: "
                            f"{_first_line(self._no_worker)}")
        return self._worker

    def _wait_no_longer(self) -> None:
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
        """Keep verdicts beside those that are there. Where they cannot be kept, the next process proves again."""
        file = self._file()
        every = {v[:4]: v for v in (*self._read(), *(Verdict(**verdict) for verdict in verdicts))}
        content = {"device": _device_facts(self._backend), "verdicts": [v._asdict() for v in every.values()]}
        try:
            make_folder(file.parent)
            write_atomically(file, json.dumps(content, indent=1).encode())
        except CheckpointError as error:
            remarks.say(f"the verdicts cannot be kept: {error}")

    def _read(self) -> list[Verdict]:
        try:
            content: Mapping[str, Any] = json.loads(self._file().read_text(encoding="utf-8"))
            return [Verdict(**entry) for entry in content["verdicts"]]
        except (OSError, ValueError, KeyError, TypeError):
            return []  # what cannot be read is proved again

    def _file(self) -> Path:
        facts = json.dumps(_device_facts(self._backend), sort_keys=True)
        return _folder() / f"{hashlib.sha256(facts.encode()).hexdigest()[:16]}.json"


def _prover(backend: str) -> Worker:
    return Worker(processes.command("duoln.testing.prover", "--backend", backend), {"DUOLN_PROVE": "0"})


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "")


def _folder() -> Path:
    return cache_folder() / "proofs"


def _device_facts(backend: Backend) -> dict[str, str]:
    """The device and what compiles and launches for it."""
    info = backend.info()
    return {"backend": backend.name, "macos": platform.mac_ver()[0], "kernels": _fingerprint(source.FOLDER),
            **{name: info[name] for name in _FACTS if name in info}}


def text_of(rule: Rule) -> str:
    """Of what a plug-in's rule is made: a hash of the files of its folder. Empty for a rule of the library."""
    module = inspect.unwrap(rule.vjp or rule.forward).__module__
    file = getattr(sys.modules.get(module), "__file__", None)
    return "" if file is None or module.startswith(_OURS) else _fingerprint(Path(file).parent)


@cache
def _fingerprint(folder: Path) -> str:
    """Of names, sizes and times of change: to read all of the texts would take 15 ms at each start."""
    files = (os.path.join(place, name) for place, _, names in os.walk(folder) for name in names
             if name.endswith(_TEXTS))
    seen = sorted((file, (about := os.stat(file)).st_size, about.st_mtime_ns) for file in files)
    return hashlib.sha256(repr(seen).encode()).hexdigest()
