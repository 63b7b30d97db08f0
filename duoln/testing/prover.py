"""Tries rules, cases and checks of a device in processes that may hang or end: for a proof, and for the survey.

    python -m duoln.testing.prover --backend cupy                                           serve one process
    python -m duoln.testing.prover --backend cupy --what selftest --json selftest.json      try all, and write a record

The process that serves (`system.processes`) is asked with an object that has its kind:
    rule    an operator, a rule, a dtype and a variant: None, or the first of the rule's own cases that fails
    case    the name of a case: its outcome by every rule that takes it
    check   the name of a check of `testing.checks`: one outcome
A record is made by several such processes side by side. One that hangs, or after which the device does not answer, is
replaced; the case that it tried is named, and all others are tried.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from duoln import ops, runtime
from duoln.backends.protocol import NO_CASE, PROVED, SET_ASIDE, Backend
from duoln.bench import machine
from duoln.bench.survey import REPEATS, options, save
from duoln.kernels.registry import Case
from duoln.system import processes
from duoln.testing import checks, selftest
from duoln.testing.selftest import Outcome

Doing = Callable[[str], None]
Result = tuple[str, list[Outcome] | None]
"""The name of what was tried, and its outcomes; None if it was left out."""

_SAVE_SECONDS = 2.0
_START_SECONDS, _TRY_SECONDS, _LADDER_SECONDS, _STEP_SECONDS = 60.0, 20.0, 8.0, 25.0
_MOST_WORKERS, _WORKER_BYTES = 8, 6 << 30
"""Processes side by side, and memory of the device that the largest case takes in one."""
_WORKER_VARIABLES = {"DUOLN_PROVE": "0", "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "DUOLN_THREADS": "2"}
_RESERVE_SECONDS = 2.0
"""Kept of a part's seconds for its last record."""
_LADDER_CASES = (
    "layer_norm 9 x 64", "layer_norm 4099 x 1000", "rnn layer T9 B3 in2 H33 reverse, gradients within 0.05",
    "lstm layer T9 B3 in2 H33 reverse, gradients within 0.05", "lstm layer T9 B3 in2 H130",
    "lstm layer T9 B8 in3 H400", "lstm layer T9 B64 in3 H240", "gru layer T9 B8 in3 H400",
    "lstm layer T100 B8 in3 H400")
"""Cases that follow the checks of the ladder: norms, then walks of more blocks and of more rows."""


# The process that serves ------------------------------------------------------------------------------

def serve(backend_name: str) -> None:
    """Answer requests until the caller is gone."""
    def begin() -> Callable[[dict[str, Any], Doing], Any]:
        backend = runtime.backend(backend_name)
        kinds = {"rule": _rule, "case": _case, "check": _check}
        return lambda request, doing: kinds[request["kind"]](backend, request, doing)

    processes.serve(begin)


def _rule(backend: Backend, request: dict[str, Any], doing: Doing) -> dict[str, Any] | None:
    tried = False
    key = request["op"], request["stored"], request["variant"]
    for case in selftest.every_device_case():
        if not case.net or (case.op, case.stored, case.attrs.get("norm", "")) != key:
            continue
        doing(str(case))
        for outcome in selftest.run(backend, [case], 2, named=request["rule"]):
            tried = True
            if outcome.says_nothing:
                return {"case": "", "reason": outcome.problem, "ended": not device_responds(backend)}
            if not outcome.right:
                return {"case": str(case), "reason": outcome.words, "ended": not device_responds(backend)}
    return None if tried else {"case": "", "reason": NO_CASE, "ended": False}


def _case(backend: Backend, request: dict[str, Any], doing: Doing) -> dict[str, Any]:
    case, outcomes, ended = find_case(request["name"]), [], False
    for outcome in selftest.run(backend, [case], request["repeats"], lambda _, rule: doing(f"{case} by {rule.name}")):
        outcomes.append(outcome._asdict())
        ended = bool(outcome.problem) and not device_responds(backend)
        if ended:
            break
    if backend.name == "cupy":  # memory of this case is for the processes beside this one
        _free_pool(backend)
    return {"outcomes": outcomes, "ended": ended}


def _check(backend: Backend, request: dict[str, Any], doing: Doing) -> dict[str, Any]:
    name = request["name"]
    doing(name)
    try:
        outcome = Outcome.of_check(name, checks.CHECKS[name](backend))
    except Exception:
        outcome = Outcome.of_check(name, problem=traceback.format_exc())
    return {"outcomes": [outcome._asdict()], "ended": bool(outcome.problem) and not device_responds(backend)}


@cache
def _by_name() -> dict[str, Case]:
    return {str(case): case for case in (*selftest.cases(), *selftest.every_device_case())}


def find_case(name: str) -> Case:
    """The case of that name."""
    return _by_name()[name]


def device_responds(backend: Backend) -> bool:
    """True if the device still computes: after some errors no call of this process succeeds."""
    try:
        return bool(backend.to_numpy(backend.ones((1,)) + 1.0)[0] == 2.0)
    except Exception:  # whatever the driver's error is
        return False


def _free_pool(backend: Any) -> None:
    backend.xp.get_default_memory_pool().free_all_blocks()


# The caller -------------------------------------------------------------------------------------------

class ProofRequest(NamedTuple):
    """One request to a process."""

    kind: str
    """"case" or "check"."""
    name: str
    repeats: int
    seconds: float
    """It has hung if it says nothing for so long."""

    def failed(self, problem: str) -> Outcome:
        """The outcome where there is no answer."""
        op = self.name.partition(" ")[0] if self.kind == "case" else ""
        return Outcome.of_check(self.name, problem=problem)._replace(op=op)


def tries(what: str, backend: Backend, quick: bool) -> list[ProofRequest]:
    """All tries of a part of the survey, the most important first."""
    if what == "ladder":
        first = [ProofRequest("check", name, 1, _LADDER_SECONDS) for name in checks.LADDER]
        return [*first, *of_cases([] if quick else _LADDER_CASES, 2, _LADDER_SECONDS)]
    every = selftest.every_device_case()
    if what == "repeats":
        steps = [ProofRequest("check", name, 1, _STEP_SECONDS) for name in list(checks.STEPS)[:1 if quick else None]]
        names = [str(c) for c in (*(c for c in every if c.runs > 2), *selftest.cases(backend))]
        return [*steps, *of_cases(names[-8:] if quick else names, 3 if quick else REPEATS)]
    wanted = (*(c for c in every if c.net or not quick), *selftest.cases(backend if quick else None))
    return of_cases(dict.fromkeys(map(str, wanted)), 2)


def of_cases(names: Iterable[str], repeats: int, seconds: float = _TRY_SECONDS) -> list[ProofRequest]:
    """Tries of the cases of these names."""
    return [ProofRequest("case", name, repeats, seconds) for name in names]


def in_workers(wanted: Sequence[ProofRequest], backend: str, count: int, until: float, running: set[str],
               ) -> Iterator[Result]:
    """Try all of it, with some processes side by side.

    Args:
        wanted: the tries, in order.
        backend: its name.
        count: number of processes.
        until: by `time.monotonic()`; what has not ended then is left out.
        running: holds the names of what is being tried.
    """
    command = processes.command("duoln.testing.prover", "--backend", backend)
    waiting: queue.SimpleQueue[ProofRequest | None] = queue.SimpleQueue()
    results: queue.SimpleQueue[Result] = queue.SimpleQueue()
    for one in (*wanted, *[None] * count):
        waiting.put(one)

    def work() -> None:
        process: processes.Worker | None = None
        while (one := waiting.get()) is not None:
            if time.monotonic() >= until:
                results.put((one.name, None))
                continue
            running.add(one.name)
            print(f"trying {one.name}", flush=True)
            try:
                if process is None:
                    process = processes.Worker(command, _WORKER_VARIABLES)
                    process.ready(min(_START_SECONDS, until - time.monotonic()))
                answer = process.ask(one._asdict(), min(one.seconds, until - time.monotonic()))
            except Exception as error:  # one that ended this thread would leave the others waiting for its results
                process, is_late = None, time.monotonic() >= until
                doing = f", while it did: {error.doing}" if isinstance(error, processes.WorkerLostError) else ""
                results.put((one.name, None if is_late else [one.failed(f"{error}{doing}")]))
            else:
                results.put((one.name, [Outcome(**entry) for entry in answer["outcomes"]]))
                if answer["ended"]:
                    process.end()
                    process = None
            running.discard(one.name)
        if process is not None:
            process.end()

    for _ in range(count):
        threading.Thread(target=work, daemon=True).start()
    for _ in wanted:
        yield results.get()


class Report:
    """The record of a part, which is written again every few seconds."""

    def __init__(self, facts: dict[str, Any], expected: int, file: Path) -> None:
        self._facts, self._expected, self._file = facts, expected, file
        self.outcomes: list[Outcome] = []
        self.left_out: list[str] = []
        self._saved = 0.0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        """Take outcomes, and say each in a line."""
        for outcome in outcomes:
            self.outcomes.append(outcome)
            print(f"{outcome.case}, {outcome.rule}: {outcome.words}" if outcome.rule else
                  f"{'' if outcome.right else 'FAILED '}{outcome.case}: {outcome.words}", flush=True)

    @property
    def good(self) -> bool:
        """True if nothing was wrong so far."""
        return all(outcome.right for outcome in self.outcomes)

    def save(self, running: Iterable[str] = (), complete: bool = False) -> None:
        """Write the file, if it is time."""
        if complete or time.monotonic() - self._saved > _SAVE_SECONDS:
            self._saved = time.monotonic()
            of_device = [o for o in self.outcomes if not o.op]
            save({**self._facts, "expected": self._expected, "complete": complete and not self.left_out,
                  "left out": len(self.left_out), "running": sorted(running),
                  "checks": {o.case: o.words for o in of_device if o.right},
                  "failures": [f"{o.case}: {o.words}" for o in of_device if not o.right],
                  "rules": [r._asdict() for r in selftest.by_rule(o for o in self.outcomes if o.op)]}, self._file)


def measure(results: Iterable[Result], running: set[str], report: Report) -> bool:
    """Write the record while results come; whether nothing was wrong."""
    report.save()
    for name, outcomes in results:
        if outcomes is None:
            report.left_out.append(name)
        else:
            report.add(outcomes)
        report.save(list(running))
    report.save(complete=True)
    return report.good


def verdicts(report: Report) -> list[dict[str, str]]:
    """A verdict on each rule of the library's operators; none on an operator with a case that hung or was left out."""
    unknown = {name.partition(" ")[0] for name in report.left_out}
    unknown |= {o.op for o in report.outcomes if o.says_nothing or not o.rule}
    rules: dict[tuple[str, ...], dict[str, str]] = {}
    for o in report.outcomes:
        of = {"op": o.op, "rule": o.rule, "stored": o.stored, "variant": o.variant}
        if o.rule and not (o.right or o.says_nothing):
            rules[tuple(of.values())] = {**of, "state": SET_ASIDE, "reason": o.words, "case": o.case}
        elif o.op not in unknown and hasattr(ops, o.op):
            rules.setdefault(tuple(of.values()), {**of, "state": PROVED})
    return list(rules.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Serve; or try all of a part, and write the file."""
    parser = options("duoln.testing.prover", __doc__.splitlines()[0], json_required=False)
    parser.add_argument("--what", choices=("ladder", "selftest", "repeats"), default="selftest")
    args = parser.parse_args(argv)
    if args.json is None:
        serve(args.backend)
        return 0
    until = time.monotonic() + args.seconds - _RESERVE_SECONDS
    backend = runtime.backend(args.backend)
    facts: dict[str, Any] = {"backend": machine.backend_facts(backend), "host": machine.host(),
                             **machine.process_facts()}
    wanted = tries(args.what, backend, args.quick)
    report = Report(facts, len(wanted), args.json)
    side_by_side = min(_MOST_WORKERS, (os.cpu_count() or 1) // 2, backend.free_memory() // _WORKER_BYTES)
    running: set[str] = set()
    workers = 1 if args.what == "ladder" else max(side_by_side, 1)
    good = measure(in_workers(wanted, backend.name, workers, until, running), running, report)
    if args.what == "selftest" and backend.proofs is not None:
        backend.proofs.learn(verdicts(report))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
