"""A process that tries kernels for another one, which goes on if they hang or end this one; see `system.worker`.

    python -m duoln.testing.prover --backend cupy

A request is an object with its kind:
    rule    an operator, a rule and a dtype: None, or the first of the rule's own cases that fails
    case    a case: what became of it by every rule that takes it
    graph   a task: its compiled step against its eager one
    ladder  the name of one of its checks
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from duoln import runtime
from duoln.backends.protocol import NO_CASE, Backend
from duoln.bench.survey.device import give_back
from duoln.errors import KernelError
from duoln.kernels.registry import Case
from duoln.system import worker
from duoln.testing import graphs, ladder, selftest

Doing = Callable[[str], None]


def main(argv: Sequence[str] | None = None) -> int:
    """Answer until the caller is gone."""
    parser = argparse.ArgumentParser(prog="python -m duoln.testing.prover", description=__doc__.splitlines()[0])
    parser.add_argument("--backend", required=True)
    args = parser.parse_args(argv)

    def begin() -> Callable[[dict[str, Any], Doing], Any]:
        backend = runtime.backend(args.backend)
        return lambda request, doing: _WAYS[request["kind"]](backend, request, doing)

    worker.serve(begin)
    return 0


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
                return {"case": "", "reason": outcome.problem, "ended": not answers(backend)}
            if not (outcome.passed or outcome.near):
                return {"case": str(case), "reason": outcome.words, "ended": not answers(backend)}
    return None if tried else {"case": "", "reason": NO_CASE, "ended": False}


def _case(backend: Backend, request: dict[str, Any], doing: Doing) -> list[dict[str, Any]]:
    case, outcomes = find_case(request["name"]), []
    for outcome in selftest.run(backend, [case], request["repeats"], lambda _, rule: doing(f"{case} by {rule.name}")):
        outcomes.append({**outcome._asdict(), "ended": bool(outcome.problem) and not answers(backend)})
        if outcomes[-1]["ended"]:
            break
    give_back(backend)
    return outcomes


def _graph(backend: Backend, request: dict[str, Any], doing: Doing) -> dict[str, Any]:
    doing(f"a graph of {request['task']}")

    def compare() -> str:
        outcome = graphs.compare(backend, request["task"])
        words = f"{outcome.variant}, {outcome.updates} updates, {outcome.obstacle or 'repeated as one'}"
        if not outcome.passed:
            raise KernelError(f"[graphs] {words}: other bits: {'; '.join(outcome.differing)}")
        return words

    return _in_words(backend, compare)


def _ladder(backend: Backend, request: dict[str, Any], doing: Doing) -> dict[str, Any]:
    doing(request["name"])
    return _in_words(backend, lambda: ladder.LADDER[request["name"]](backend))


def _in_words(backend: Backend, check: Callable[[], str]) -> dict[str, Any]:
    """The words of a check, or the whole of its error and whether the device is lost to this process."""
    try:
        return {"words": check(), "wrong": "", "ended": False}
    except Exception:
        return {"words": "", "wrong": traceback.format_exc(), "ended": not answers(backend)}


_WAYS: dict[str, Callable[[Backend, dict[str, Any], Doing], Any]] = {
    "rule": _rule, "case": _case, "graph": _graph, "ladder": _ladder}


@cache
def _by_name() -> dict[str, Case]:
    return {str(case): case for case in (*selftest.cases(), *selftest.every_device_case())}


def find_case(name: str) -> Case:
    """The case of that name."""
    return _by_name()[name]


def answers(backend: Backend) -> bool:
    """Whether the device still computes: after some errors no call of this process succeeds."""
    try:
        return bool(backend.to_numpy(backend.ones((1,)) + 1.0)[0] == 2.0)
    except Exception:  # whatever the driver's error is
        return False


if __name__ == "__main__":
    sys.exit(main())
