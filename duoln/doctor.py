"""The report of what this machine can use, the reasons why it cannot use the rest, and the remedies."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from duoln import backends, runtime
from duoln.core import Rule
from duoln.data.files import absent_folders, data_folders
from duoln.errors import DataMissingError, DuolnError
from duoln.kernels.registry import every_op, registered
from duoln.system import limits, openblas
from duoln.system.paths import cache_folder
from duoln.tasks.registry import Registry


def examine(with_ops: bool = False, asked: Sequence[str] | None = None) -> dict[str, Any]:
    """The report of `duoln doctor` as plain data. It works also if every backend and plug-in is broken.

    Args:
        with_ops: report the rules of each operator, too.
        asked: load the plug-ins of these names only.

    Raises:
        UsageError: a name in `asked` that no plug-in has.
    """
    registry = Registry(asked=asked)
    probes = [runtime.probe(name) for name in backends.NAMES]
    try:
        choice = runtime.choice_in_full()
    except DuolnError as error:
        choice = f"nothing: {error}"
    facts: dict[str, Any] = {
        "backends": [{
            "name": p.name, "usable": p.backend is not None, "device": p.backend.device if p.backend else "",
            "reason": p.reason, "remedy": "" if p.backend and not p.reason else runtime.REMEDIES[p.name],
            "info": p.backend.info() if p.backend else {},
        } for p in probes],
        "choice": choice,
        "native": runtime.native_facts(),
        "threads": limits.workers(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "advice": [line for line in (openblas.advice(), *absent_folders()) if line],
        "data": {"folders": [str(f) for f in data_folders()], "cache": _cache_folder()},
        "plugins": [{"name": name, "distribution": registry.distributions[name], "reason": "",
                     "brings": [*brings, *_operators_of(registry.packages[name])]}
                    for name, brings in registry.brings.items()]
                   + [{**b._asdict(), "brings": []} for b in registry.broken],
        "proofs": {p.name: p.backend.proofs.kept() for p in probes
                   if p.backend is not None and p.backend.proofs is not None},
    }
    if with_ops:
        usable = {p.name: p.backend for p in probes if p.backend is not None}
        every = {name: known.op for name, known in registered().items()} | {op.name: op for op in every_op()}
        facts["ops"] = {name: {b: " > ".join(_described(rule) for rule in op.rules(b)) for b in usable}
                        for name, op in every.items()}
        facts["remarks"] = [f"{name} on {b}, rule '{rule.name}': {remark}"
                            for name, op in every.items() for b, backend in usable.items()
                            for rule in op.rules(b) if rule.remark is not None and (remark := rule.remark(backend))]
    return facts


def _operators_of(package: str) -> list[str]:
    return [f"operator {name}" for name, known in registered().items()
            if f"{known.op.__module__}.".startswith(f"{package}.")]


def _cache_folder() -> str:
    try:
        return str(cache_folder())
    except DataMissingError as error:
        return f"none: {error}"


def rules_table(names: Sequence[str]) -> str:
    """The fused rules of duoln's own operators on these backends, in the order of trial, as Markdown.

    Operators with the same rules share a line.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for op in sorted(every_op(), key=lambda op: op.name):
        cells = tuple([" > ".join(map(_described, op.rules(name)[:-1])) or "-" for name in names])
        alike.setdefault(cells, []).append(f"`{op.name}`")
    alike.pop(("-",) * len(names), None)
    lines = [("operator", *names), ("---",) * (1 + len(names))]
    lines += [(", ".join(operators), *cells) for cells, operators in alike.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _described(rule: Rule) -> str:
    """The rule's name, with a mark if it reads 16 bits as they are stored; other rules get such values in float32."""
    return f"{rule.name} (16 bits)" if rule.stored else rule.name
