"""Whether a device computes the right values, in processes that may hang or end: parts of the survey.

    python -m duoln.testing.correctness --backend cupy --what selftest --json selftest.json

Several processes try one thing after the other. One that hangs, or after which the device does not answer, is replaced;
the thing that it tried is named, and all others are tried.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from duoln import ops, runtime
from duoln.backends.protocol import PROVED, SET_ASIDE, Backend
from duoln.bench import machine
from duoln.bench.survey import device
from duoln.bench.survey.parts import REPEATS
from duoln.bench.survey.program import options, save
from duoln.kernels.registry import Case
from duoln.system import processes
from duoln.system.worker import Worker, WorkerLostError
from duoln.testing import graphs, ladder, selftest
from duoln.testing.compilation import compile_all, of_this_device

_SAVE_SECONDS = 2.0
_START_SECONDS, _TRY_SECONDS, _LADDER_SECONDS, _GRAPH_SECONDS = 60.0, 20.0, 8.0, 25.0
_MOST_WORKERS, _WORKER_BYTES = 8, 6 << 30
"""Processes side by side, and memory of the device that the largest case takes in one."""
_OF_A_WORKER = {"DUOLN_PROVE": "0", "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "DUOLN_THREADS": "2"}
_RESERVE_SECONDS = 2.0
"""Of a part, for its last record."""
SMALL_VALUES = 1 << 17


class Try(NamedTuple):
    """One thing that a process tries."""

    name: str
    request: dict[str, Any]
    seconds: float = _TRY_SECONDS
    """It has hung if it says nothing for so long."""


class Result(NamedTuple):
    """What became of it."""

    of: Try
    answer: Any = None
    lost: str = ""
    """Why there is no answer."""
    left_out: bool = False


def tries(what: str, backend: Backend, quick: bool) -> list[Try]:
    """What a part tries, the most important first."""
    if what == "ladder":
        first = [Try(name, {"kind": "ladder", "name": name}, _LADDER_SECONDS) for name in ladder.LADDER]
        return [*first, *_of_cases([] if quick else ladder.CASES, 2, _LADDER_SECONDS)]
    if what == "graphs":
        return [Try(task, {"kind": "graph", "task": task}, _GRAPH_SECONDS)
                for task in graphs.TASKS[:1 if quick else None]]
    every = selftest.every_device_case()
    if what == "repeats":
        names = [str(c) for c in (*(c for c in every if c.runs > 2), *selftest.cases(backend))]
        return _of_cases(names[-8:] if quick else names, 3 if quick else REPEATS)
    wanted = (*(c for c in every if c.net or not quick), *selftest.cases(backend if quick else None))
    return _of_cases(dict.fromkeys(map(str, wanted)), 2)


def _of_cases(names: Iterable[str], repeats: int, seconds: float = _TRY_SECONDS) -> list[Try]:
    return [Try(name, {"kind": "case", "name": name, "repeats": repeats}, seconds) for name in names]


def in_workers(wanted: Sequence[Try], backend: str, count: int, until: float, running: set[str]) -> Iterator[Result]:
    """Try all of it, with some processes side by side.

    Args:
        wanted: what to try, in order.
        backend: its name.
        count: of processes.
        until: by `time.monotonic()`; what has not ended then is left out.
        running: holds the names of what is being tried.
    """
    command = processes.command("duoln.testing.prover", "--backend", backend)
    waiting: queue.SimpleQueue[Try | None] = queue.SimpleQueue()
    results: queue.SimpleQueue[Result] = queue.SimpleQueue()
    for one in (*wanted, *[None] * count):
        waiting.put(one)

    def work() -> None:
        worker: Worker | None = None
        while (one := waiting.get()) is not None:
            if time.monotonic() >= until:
                results.put(Result(one, left_out=True))
                continue
            running.add(one.name)
            print(f"trying {one.name}", flush=True)
            try:
                if worker is None:
                    worker = Worker(command, _OF_A_WORKER)
                    worker.ready(min(_START_SECONDS, until - time.monotonic()))
                answer = worker.ask(one.request, min(one.seconds, until - time.monotonic()))
            except Exception as error:  # one that ended this thread would leave the others waiting for its results
                worker, is_late = None, time.monotonic() >= until
                doing = f", while it did: {error.doing}" if isinstance(error, WorkerLostError) else ""
                results.put(Result(one, left_out=True) if is_late else Result(one, lost=f"{error}{doing}"))
            else:
                results.put(Result(one, answer))
                if has_ended(answer):
                    worker.end()
                    worker = None
            running.discard(one.name)
        if worker is not None:
            worker.end()

    for _ in range(count):
        threading.Thread(target=work, daemon=True).start()
    for _ in wanted:
        yield results.get()


def has_ended(answer: Any) -> bool:
    """Whether the device no longer answers that process."""
    return any(outcome["ended"] for outcome in (answer if isinstance(answer, list) else [answer]))


class Report:
    """The record of a part, which is written again every few seconds."""

    def __init__(self, facts: dict[str, Any], expected: int, file: Path) -> None:
        self._facts, self._expected, self._file = facts, expected, file
        self.outcomes: list[selftest.Outcome] = []
        self.lines: dict[str, str] = {}
        self.failures: list[str] = []
        self.left_out = 0
        self.unknown: list[str] = []
        """What was left out or gave no answer."""
        self._saved = 0.0

    def add(self, result: Result) -> None:
        """Take one result, and say it in a line."""
        name = result.of.name
        if result.left_out or result.lost:
            self.unknown.append(name)
        if result.left_out:
            self.left_out += 1
        elif result.lost:
            self._fail(name, result.lost)
        elif isinstance(result.answer, list):
            for answer in result.answer:
                outcome = selftest.Outcome(**{k: v for k, v in answer.items() if k != "ended"})
                self.outcomes.append(outcome)
                print(f"{name}, {outcome.rule}: {outcome.words}", flush=True)
        elif result.answer["wrong"]:
            self._fail(name, result.answer["wrong"])
        else:
            self.lines[name] = result.answer["words"]
            print(f"{name}: {self.lines[name]}", flush=True)

    def _fail(self, name: str, why: str) -> None:
        self.failures.append(f"{name}: {why}")
        print(f"FAILED {name}: {why}", flush=True)

    @property
    def good(self) -> bool:
        """Whether nothing was wrong so far."""
        return not self.failures and all(o.passed or o.near for o in self.outcomes)

    def save(self, running: Sequence[str], complete: bool = False) -> None:
        """Write the file, if it is time."""
        if complete or time.monotonic() - self._saved > _SAVE_SECONDS:
            self._saved = time.monotonic()
            save({**self._facts, "expected": self._expected, "complete": complete and not self.left_out,
                  "left out": self.left_out, "running": sorted(running), "failures": self.failures,
                  "lines": self.lines, "rules": [r._asdict() for r in selftest.by_rule(self.outcomes)]}, self._file)


def measure(wanted: Sequence[Try], backend: str, workers: int, until: float, report: Report) -> bool:
    """Try all of it, and write the record on the way; whether nothing was wrong."""
    running: set[str] = set()
    report.save([])
    for result in in_workers(wanted, backend, workers, until, running):
        report.add(result)
        report.save(list(running))
    report.save([], complete=True)
    return report.good


def verdicts(report: Report) -> list[dict[str, str]]:
    """What all cases say of each rule of the library's operators. Where one hung or was left out, nothing is known."""
    silent = [o.case for o in report.outcomes if o.says_nothing]
    unknown = {name.partition(" ")[0] for name in (*report.unknown, *silent)}
    rules: dict[tuple[str, ...], dict[str, str]] = {}
    for o in report.outcomes:
        of = {"op": o.op, "rule": o.rule, "stored": o.stored, "variant": o.variant}
        if not (o.passed or o.near or o.says_nothing):
            rules[tuple(of.values())] = {**of, "state": SET_ASIDE, "reason": o.words, "case": o.case}
        elif o.op not in unknown and hasattr(ops, o.op):
            rules.setdefault(tuple(of.values()), {**of, "state": PROVED})
    return list(rules.values())


def small_cases(backend: Backend) -> list[Case]:
    """Of each operator, variant and rule the largest case of few values: for tools under which a kernel takes long."""
    few = [case for case in selftest.cases() if selftest.size_of(case) <= SMALL_VALUES]
    return selftest.largest_of_each(few, backend)


def _here(backend: Backend, report: Report) -> bool:
    """A small case of each rule in this process."""
    for outcome in selftest.run(backend, small_cases(backend), 1):
        report.add(Result(Try(outcome.case, {}), [outcome._asdict()]))
        report.save([])
    report.save([], complete=True)
    return report.good


def main(argv: Sequence[str] | None = None) -> int:
    """Compile, compare, and write the file."""
    parser = options("duoln.testing.correctness", __doc__.splitlines()[0])
    parser.add_argument("--what", choices=("ladder", "selftest", "graphs", "repeats"), default="selftest")
    parser.add_argument("--seconds", type=float, default=float("inf"), metavar="N",
                        help="what has not begun by then is left out")
    parser.add_argument("--small", action="store_true", help="a small case of each rule, in this process")
    parser.add_argument("--no-pool", action="store_true", help="each array has memory of its own, for memcheck")
    args = parser.parse_args(argv)
    until = time.monotonic() + args.seconds - _RESERVE_SECONDS
    backend = runtime.backend(args.backend)
    if args.no_pool:
        device.allocate_each_array()
    facts: dict[str, Any] = {"backend": machine.backend_facts(backend), "host": machine.host(), **machine.side()}
    if args.small:
        return 0 if _here(backend, Report(facts, len(small_cases(backend)), args.json)) else 1
    if args.what == "ladder" and backend.name == "cupy" and not args.quick:  # the survey ends it with this part
        subprocess.Popen(processes.command("duoln.testing.compilation"), env=processes.environment(),
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    if args.what == "selftest" and backend.name == "cupy" and not args.quick:
        facts["compilation"] = compile_all(os.cpu_count() or 1, of_this_device())
        save(facts, args.json)
    wanted = tries(args.what, backend, args.quick)
    report = Report(facts, len(wanted), args.json)
    side_by_side = min(_MOST_WORKERS, (os.cpu_count() or 1) // 2, backend.free_memory() // _WORKER_BYTES)
    workers = 1 if args.what == "ladder" else max(side_by_side, 1)
    good = measure(wanted, backend.name, workers, until, report)
    if args.what == "selftest" and backend.proofs is not None:
        backend.proofs.learn(verdicts(report))
    return 0 if good and not facts.get("compilation", {}).get("failures") else 1


if __name__ == "__main__":
    sys.exit(main())
