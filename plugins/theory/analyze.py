"""`duoln analyze`: measurements of what the paper proves or claims about normalised models."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from duoln.cli import facts
from duoln.errors import UsageError
from duoln.system.paths import path_argument
from duoln.tasks import Command

if TYPE_CHECKING:
    from duoln.backends.protocol import Backend
    from duoln.plugins.theory.statements import Statement
    from duoln.plugins.theory.trained import Training


def _add_options(analyze: argparse.ArgumentParser) -> None:
    kinds = analyze.add_subparsers(dest="kind", metavar="KIND", required=True)

    invariance = kinds.add_parser("invariance", help="table 1: which changes of weights and data leave the output")
    invariance.add_argument("--draws", type=int, default=20, help="random models and data for each cell (20)")
    invariance.add_argument("--eps", type=float, default=1e-5, help="of layer and batch norm (1e-5; the paper has 0)")
    invariance.set_defaults(measure=_invariance)

    geometry = kinds.add_parser("geometry", help="eq. 8-14 and 32-35: the Fisher information, exact and by the paper")
    geometry.add_argument("--cases", type=int, default=500, help="rows of data (500)")
    geometry.set_defaults(measure=_geometry)

    magnitude = kinds.add_parser("magnitude", help="section 5.2.2: what scaled inputs do to learning the weights' size")
    magnitude.add_argument("--cases", type=int, default=500, help="rows of data (500)")
    magnitude.add_argument("--scale", type=float, default=4.0, help="factor of inputs and weights (4)")
    magnitude.add_argument("--shift", type=float, default=3.0, help="what every input is moved by (3)")
    magnitude.set_defaults(measure=_magnitude)

    stability = kinds.add_parser("stability", help="section 3.1: states and gradients of recurrent networks over time")
    stability.add_argument("--steps", type=int, default=100, help="time steps (100)")
    stability.add_argument("--scales", type=_numbers, metavar="S,S,...", default=(0.5, 1.0, 2.0, 4.0),
                           help="factors of the recurrent weights (0.5,1,2,4)")
    stability.add_argument("--eps", type=float, default=1e-5, help="of the norms (1e-5)")
    stability.set_defaults(measure=_stability)

    equations = kinds.add_parser("equations", help="eq. 2-4 and 15-31: our layers and cells against them, as printed; "
                                                   "what the text says of a normalised layer")
    equations.set_defaults(measure=_equations)

    shift = kinds.add_parser("shift", help="covariate shift: how far the inputs of a task's layers move in training")
    smoothness = kinds.add_parser("smoothness", help="Lipschitz constants of a task's loss and of its gradient")
    borders = kinds.add_parser("borders", help="section 6.7: how often units at an image's border are turned on")

    for kind, which, task in ((shift, "a task that tells what its layers get", "las"), (smoothness, "any task", "las"),
                              (borders, "one with convolutions", "convnet")):
        kind.set_defaults(measure=_trained)
        kind.add_argument("--task", default=task, help=f"{which} ({task})")
        kind.add_argument("--variant", metavar="NAME[,NAME]", help="what is compared (default: every variant)")
        kind.add_argument("--preset", metavar="NAME", default="small", help="default: small")
        kind.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
                          help="a setting of the task; may be repeated")
        kind.add_argument("--updates", type=int, default=200, help="of each variant (200)")
        kind.add_argument("--every", type=int, default=5, help="updates between two looks (5)")
        kind.add_argument("--seeds", type=int, default=5, metavar="COUNT",
                          help="from so many seeds, the first of which is --seed's (5)")
        facts.add_plugin_option(kind)

    for kind in (invariance, geometry, magnitude, stability, equations, shift, smoothness, borders):
        exact = kind in (geometry, magnitude, equations)
        kind.add_argument("--backend", help="default: numpy, for its float64" if exact else
                          "default: DUOLN_BACKEND, else auto")
        kind.add_argument("--seed", type=int, default=0, help="0 to 2^64 - 1 (default 0)")
        name = kind.prog.split()[-1]
        kind.add_argument("--out", type=path_argument, metavar="DIR", help=f"write {name}.json there")
        kind.add_argument("--json", action="store_true", help="as one JSON object on stdout")


def _analyze(args: argparse.Namespace) -> int:
    measure: Callable[[argparse.Namespace], int] = args.measure
    return measure(args)


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers with commas between them, found {text!r}") from None


def _invariance(args: argparse.Namespace) -> int:
    from duoln.plugins.theory import invariance, tables

    backend = _backend(args.backend)
    table = invariance.table_one(backend, args.seed, args.draws, args.eps)
    summary = f"{table.agreeing} of {len(table.cells)} cells of table 1 as in the paper"
    return _finish(args, backend, summary, table.agreeing == len(table.cells), {
        **_plain(table), "cells": [{**c._asdict(), "measured": c.measured} for c in table.cells]},
        lambda: tables.show_invariance(table, summary))


def _geometry(args: argparse.Namespace) -> int:
    from duoln.plugins.theory import geometry, tables
    from duoln.plugins.theory.statements import statements

    backend = _backend(args.backend or "numpy")
    report = geometry.examine(backend, args.seed, args.cases)
    checked = statements(report)
    errors = {norm: max(max(b.weights, b.cross, b.others) for b in report.blocks if b.norm == norm)
              for norm in geometry.NORMALISED}
    layer = next(b for b in report.blocks if b.norm == "layer")
    summary = (f"eq. 13: exact for batch norm ({errors['batch']:.0e}) and weight norm ({errors['weight']:.0e}); "
               f"{layer.weights:.0%} off for layer norm's blocks of weights ({layer.family})")
    return _finish(args, backend, summary, all(s.agrees for s in checked),
                   {"statements": _as_objects(checked), **dataclasses.asdict(report)},
                   lambda: tables.show_geometry(report, checked, summary))


def _magnitude(args: argparse.Namespace) -> int:
    from duoln.plugins.theory import magnitude, tables

    backend = _backend(args.backend or "numpy")
    report = magnitude.measure(backend, args.seed, args.cases, args.scale, args.shift)
    scaled = {effect.norm: effect.ratio for effect in report.effects
              if (effect.change, effect.family) == (report.changes[0], "gaussian")}
    summary = (f"{report.changes[0]}: the metric along |w| of a plain model x {scaled['none']:.4g}, along the gain x "
               f"{scaled['weight']:.4g} in weight norm, x {scaled['batch']:.4g} in batch norm, x {scaled['layer']:.4g} "
               "in layer norm")
    return _finish(args, backend, summary, report.holds, _plain(report), lambda: tables.show_magnitude(report, summary))


def _stability(args: argparse.Namespace) -> int:
    from duoln.plugins.theory import stability, tables

    backend = _backend(args.backend)
    report = stability.walks(backend, args.seed, args.steps, args.scales, args.eps)
    ranges = []
    for norm in stability.NORMS:
        first = [w.gradient[0] if math.isfinite(w.gradient[0]) else math.inf for w in report.of("rnn", norm)]
        ranges.append(f"{tables.TITLES[norm]} {tables.power(min(first))} to {tables.power(max(first))}")
    summary = f"RNN, gradient over {report.steps} steps at W_h x {min(args.scales):g} to {max(args.scales):g}: " \
              f"{'; '.join(ranges)}"
    return _finish(args, backend, summary, None, _plain(report), lambda: tables.show_stability(report, summary))


def _equations(args: argparse.Namespace) -> int:
    from duoln.plugins.theory import tables
    from duoln.plugins.theory.equations import equations
    from duoln.plugins.theory.properties import properties

    backend = _backend(args.backend or "numpy")
    cells, texts = equations(backend, args.seed), properties(backend, args.seed)
    checked = [*cells, *texts]
    summary = (f"{sum(s.agrees for s in cells)} of {len(cells)} layers and cells are their equations, to a relative "
               f"{max(s.error for s in cells):.0e}; {sum(s.agrees for s in texts)} of {len(texts)} statements on a "
               "layer are as known")
    return _finish(args, backend, summary, all(s.agrees for s in checked), {"statements": _as_objects(checked)},
                   lambda: tables.show_equations(checked, summary))


def _trained(args: argparse.Namespace) -> int:
    from duoln.plugins.theory import borders, shift, smoothness, tables

    kinds: dict[str, tuple[Callable[[Training], Any], Callable[[Any], str], Callable[[Any, str], None]]] = {
        "shift": (shift.measure, tables.shift_summary, tables.show_shift),
        "smoothness": (smoothness.measure, tables.smoothness_summary, tables.show_smoothness),
        "borders": (borders.measure, tables.borders_summary, tables.show_borders)}
    measure, summary_of, show = kinds[args.kind]
    training = _training(args)
    report = measure(training)
    summary = f"{report.task}, {report.dataset}: {summary_of(report)}"
    return _finish(args, training.backend, summary, None, _plain(report), lambda: show(report, summary))


def _training(args: argparse.Namespace) -> Training:
    from duoln.plugins.theory.trained import Training
    from duoln.tasks.registry import find_task

    task = find_task(args.task, args.plugins)
    variants = facts.variants_of(task, args.variant) or list(task.variants)
    settings = facts.settings_of(task, args)
    if "seed" in settings:
        raise UsageError(f"[{args.kind}] --set seed: expected --seed, the first of several")
    if args.seeds < 1:
        raise UsageError(f"[{args.kind}] --seeds: expected at least 1, found {args.seeds}")
    return Training(task, variants, args.preset, settings, _backend(args.backend),
                    range(args.seed, args.seed + args.seeds), args.updates, args.every)


# Shared by all kinds ------------------------------------------------------------------------------------

def _backend(name: str | None) -> Backend:
    from duoln import runtime
    from duoln.cli import console

    backend, why = runtime.choose(name)
    console.say(f"backend: {why}")
    return backend


def _plain(report: Any) -> dict[str, Any]:
    """A report, a NamedTuple with lists of others, as an object of JSON."""
    def rows(value: Any) -> Any:
        of_list = isinstance(value, list)
        return [row._asdict() if hasattr(row, "_asdict") else row for row in value] if of_list else value

    return {key: rows(value) for key, value in report._asdict().items()}


def _as_objects(checked: Sequence[Statement]) -> list[dict[str, Any]]:
    return [{**s._asdict(), "agrees": s.agrees} for s in checked]


def _finish(args: argparse.Namespace, backend: Backend, summary: str, agrees: bool | None, content: Mapping[str, Any],
            show: Callable[[], None]) -> int:
    """Print the finding or write it as JSON, with the backend and the device that computed it; the exit code."""
    from duoln.cli import console
    from duoln.data import json_text
    from duoln.runs.commit import git
    from duoln.system.filesystem import make_folder, write_atomically

    document = {
        "analysis": args.kind, "summary": summary, "agrees": agrees,
        "time": datetime.now(UTC).isoformat(timespec="microseconds"), "seed": args.seed,
        "git": git(), "backend": {"name": backend.name, **backend.info()}, **content}
    if args.out is not None:
        make_folder(args.out)
        path = args.out / f"{args.kind}.json"
        write_atomically(path, f"{json_text.dumps(document)}\n".encode())
        console.say(f"wrote {path}")
    if args.json:
        console.put_json(document)
    else:
        show()
    return 1 if agrees is False else 0


COMMAND = Command("analyze", "measure what the paper proves about normalised models", _add_options, _analyze)
