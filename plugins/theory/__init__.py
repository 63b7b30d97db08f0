"""`duoln analyze`: measures what the paper proves or claims about normalised models, on models and data.

`invariance` is table 1 (section 5.1); `geometry` the Fisher information of normalised generalised linear models
(section 5.2 and the supplement); `magnitude` how fast the size of the weights is learnt when inputs are scaled (section
5.2.2); `stability` the claim of section 3.1 on recurrent networks; `equations` compares layers and cells with what is
printed. `trained` trains a task's variants and looks at their layers. Each gives a `report`.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING

from duoln.cli import facts
from duoln.errors import UsageError
from duoln.system.paths import path_argument
from duoln.tasks import Command, hookimpl

if TYPE_CHECKING:
    from duoln.backends.protocol import Backend
    from duoln.plugins.theory.report import Report
    from duoln.plugins.theory.trained import Training

_COMPUTED = {
    "invariance": "table 1: which changes of weights and data leave the output",
    "geometry": "eq. 8-14 and 32-35: the Fisher information, exact and by the paper",
    "magnitude": "section 5.2.2: what scaled inputs do to learning the weights' size",
    "stability": "section 3.1: states and gradients of recurrent networks over time",
    "equations": "eq. 2-4 and 15-31: our layers and cells against them, as printed; what the text says of a normalised "
                 "layer"}
"""The analyses of random models; each is the module of its name."""
_TRAINED = {
    "shift": ("covariate shift: how far the inputs of a task's layers move in training",
              "a task that tells what its layers get", "las"),
    "smoothness": ("Lipschitz constants of a task's loss and of its gradient", "any task", "las"),
    "borders": ("section 6.7: how often units at an image's border are turned on", "one with convolutions", "convnet")}
"""The analyses of a training; each is the function of its name in `trained`."""
_EXACT = ("geometry", "magnitude", "equations")


def _add_options(analyze: argparse.ArgumentParser) -> None:
    kinds = analyze.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, what in {**_COMPUTED, **{name: what for name, (what, _, _) in _TRAINED.items()}}.items():
        kind = kinds.add_parser(name, help=what)
        if name in _TRAINED:
            _add_options_of_training(kind, *_TRAINED[name][1:])
        kind.add_argument("--backend", help="default: numpy, for its float64" if name in _EXACT else
                          "default: DUOLN_BACKEND, else auto")
        kind.add_argument("--seed", type=int, default=0, help="0 to 2^64 - 1 (default 0)")
        kind.add_argument("--out", type=path_argument, metavar="DIR", help=f"write {name}.json there")
        kind.add_argument("--json", action="store_true", help="as one JSON object on stdout")


def _add_options_of_training(kind: argparse.ArgumentParser, which: str, task: str) -> None:
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


def _analyze(args: argparse.Namespace) -> int:
    """Print the report or write it as JSON, with the backend and the device that computed it; the exit code."""
    from duoln.cli import console
    from duoln.data import json_text
    from duoln.runs.commit import git
    from duoln.system.filesystem import make_folder, write_atomically

    if args.kind in _TRAINED:
        training = _training(args)
        backend = training.backend
        report: Report = getattr(import_module("duoln.plugins.theory.trained"), args.kind)(training)
    else:
        module = import_module(f"duoln.plugins.theory.{args.kind}")
        backend = _backend(args.backend or ("numpy" if args.kind in _EXACT else None))
        report = module.measure(backend, args.seed)
    document = {
        "analysis": args.kind, "summary": report.summary, "agrees": report.agrees,
        "time": datetime.now(UTC).isoformat(timespec="microseconds"), "seed": args.seed,
        "git": git(), "backend": {"name": backend.name, **backend.info()}, **report.content}
    if args.out is not None:
        make_folder(args.out)
        path = args.out / f"{args.kind}.json"
        write_atomically(path, f"{json_text.dumps(document)}\n".encode())
        console.say(f"wrote {path}")
    if args.json:
        console.put_json(document)
    else:
        console.show(report.table, data=True)
        for line in report.lines:
            console.put(line)
    return 1 if report.agrees is False else 0


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


def _backend(name: str | None) -> Backend:
    from duoln import runtime
    from duoln.cli import console

    backend, why = runtime.choose(name)
    console.say(f"backend: {why}")
    return backend


@hookimpl
def duoln_commands() -> list[Command]:
    """The command `analyze`."""
    return [Command("analyze", "measure what the paper proves about normalised models", _add_options, _analyze)]
