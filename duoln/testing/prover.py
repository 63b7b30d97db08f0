"""A process that tries kernels for another one, which goes on if they hang or end this one; see `system.worker`.

    python -m duoln.testing.prover --backend cupy

A request is an object with its kind:
    rule    an operator, a rule and a dtype: None, or the first of the rule's own cases that fails
    case    a case of the tables: what became of it by every rule that takes it
    graph   a task: its compiled step against its eager one
    rung    a step of the ladder
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from duoln import ops, runtime
from duoln.backends.protocol import Backend
from duoln.core import Op
from duoln.kernels.case_table import RuleCase
from duoln.system import worker
from duoln.tasks.registry import Registry
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
    op = operators().get(request["op"])
    rules = [] if op is None else [rule for rule in op.rules(backend.name) if rule.name == request["rule"]]
    tried = False
    for planned in selftest.device_cases() if rules else ():
        if not planned.net or (planned.op, planned.stored) != (request["op"], request["stored"]):
            continue
        case = planned.make()
        if case.attrs.get("norm", "") != request["variant"] or rules[0] not in selftest.rules(case, backend):
            continue
        doing(planned.name)
        tried = True
        for outcome in selftest.run(backend, [case], 1, rules):
            if not outcome.passed:
                return {"case": planned.name, "reason": outcome.words, "ended": not answers(backend)}
    return None if tried else {"case": "", "reason": "no case proves it", "ended": False}


def _case(backend: Backend, request: dict[str, Any], doing: Doing) -> list[dict[str, Any]]:
    case, outcomes = find_case(request["name"]), []
    for rule in selftest.rules(case, backend):
        doing(f"{case}, rule '{rule.name}'")
        for outcome in selftest.run(backend, [case], request["repeats"], [rule]):
            outcomes.append(outcome.as_record())
        if outcome.problem and not answers(backend):
            outcomes[-1]["ended"] = True
            break
    return outcomes


def _graph(backend: Backend, request: dict[str, Any], doing: Doing) -> dict[str, str]:
    doing(f"a graph of {request['task']}")
    try:
        outcome = graphs.compare(backend, request["task"])
    except Exception:
        return {"words": "", "wrong": traceback.format_exc()}
    return {"words": outcome.words, "wrong": "" if outcome.same else outcome.words}


def _rung(backend: Backend, request: dict[str, Any], doing: Doing) -> dict[str, str]:
    doing(request["name"])
    try:
        return {"words": ladder.RUNGS[request["name"]](backend), "wrong": ""}
    except Exception:
        return {"words": "", "wrong": traceback.format_exc()}


_WAYS: dict[str, Callable[[Backend, dict[str, Any], Doing], Any]] = {
    "rule": _rule, "case": _case, "graph": _graph, "rung": _rung}


@cache
def operators() -> dict[str, Op[..., Any]]:
    """Every operator by its name: the library's, and those of plug-ins."""
    library = {name: op for name in ops.__all__ if isinstance(op := getattr(ops, name), Op)}
    return {**library, **{op.name: op for op in Registry().operators}}


@cache
def find_case(name: str) -> RuleCase:
    """A case of either table."""
    raise NotImplementedError


def answers(backend: Backend) -> bool:
    """Whether the device still computes: after some errors no call of this process succeeds."""
    try:
        return bool(backend.to_numpy(backend.ones((1,)) + 1.0)[0] == 2.0)
    except Exception:  # whatever the driver's error is
        return False


if __name__ == "__main__":
    sys.exit(main())
