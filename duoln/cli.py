"""The `duoln` command. Exit codes: 0 done, 1 failed, 2 usage, 3 no usable backend, 4 data missing or
corrupt, 5 diverged, 6 out of memory, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duoln
from duoln.errors import CheckpointError, DuolnError, UsageError

if TYPE_CHECKING:
    from duoln.backends.protocol import Backend
    from duoln.tasks.spec import Config, Splits, Task

EXAMPLES = """examples:
  duoln list                                         tasks, variants and presets
  duoln run mnist                                    every variant, then a table
  duoln run mnist --variant ln --preset paper        one variant, the paper's protocol
  duoln run mnist --set learning_rate=0.003 --set epochs=5
  duoln run mnist --out runs/a --resume auto         go on where runs/a stopped
  duoln report runs/a runs/b                         curves of several runs
  duoln doctor                                       what this machine can use, and what mends the rest
  duoln selftest                                     every fused rule of this machine against float64
  duoln bench train --task mnist --peer torch        our training step beside PyTorch's
  duoln bench ops --small --json here.json           operators beside a plain copy, with every sample in a file
  duoln compare here.json there.json                 two machines beside each other
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="duoln", description="Layer-normalised networks on any vendor's hardware.",
                                     epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"duoln {duoln.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    listing = commands.add_parser("list", help="the tasks, with their variants and presets")
    listing.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    listing.set_defaults(run=_list)

    run = commands.add_parser("run", help="train a task")
    run.add_argument("task")
    run.add_argument("--variant", default="all", metavar="NAME[,NAME]", help="what to train (default: every variant)")
    run.add_argument("--preset", metavar="NAME", help="paper, small or smoke; see `duoln list`")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
                     help="a setting of the task; may be repeated")
    add_run_options(run)
    run.set_defaults(run=_run)

    doctor = commands.add_parser("doctor", help="what this machine can use, and what mends the rest")
    doctor.add_argument("--ops", action="store_true", help="which rule each operator runs on each backend")
    doctor.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    doctor.set_defaults(run=_doctor)

    test = commands.add_parser("selftest", help="every fused rule of this machine's backend against float64")
    test.add_argument("--backend", help="default: DUOLN_BACKEND, else auto")
    test.add_argument("--repeats", type=_count, default=2, metavar="N", help="runs that must be equal to the bit (2)")
    test.add_argument("--one-of-each", action="store_true", help="only the largest case of each operator and variant")
    test.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    test.set_defaults(run=_selftest)

    report = commands.add_parser("report", help="figures and curves of finished or running runs")
    report.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    report.add_argument("--out", type=Path, help="where to write the curves (default: the first RUN)")
    report.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    report.set_defaults(run=_report)

    from duoln.bench.commands import add_commands

    add_commands(commands)
    return parser


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The options that `duoln run` and the examples share."""
    from duoln.runtime import CHOICES

    parser.add_argument("--backend", choices=CHOICES, help="default: DUOLN_BACKEND, else auto")
    parser.add_argument("--seed", type=int, help="default 0")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run folder (default: runs/TASK-DATE-TIME)")
    parser.add_argument("--resume", choices=("auto",), help="go on from the newest good checkpoint in --out, "
                        "or in the newest run of this task below runs/")
    parser.add_argument("--tf32", action="store_true", help="let the GPU round float32 products to TF32")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object on stdout")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code."""
    def run() -> int:
        args = build_parser().parse_args(argv)
        code: int = args.run(args)
        return code

    return _guarded(run)


def _guarded(run: Callable[[], int]) -> int:
    """Run a command; its errors become one message on stderr and an exit code."""
    from duoln import console

    try:
        return run()
    except DuolnError as error:
        console.say(f"duoln: {error}", style="yellow" if error.exit_code == 130 else "bold red")
        return error.exit_code
    except KeyboardInterrupt:
        console.say("duoln: interrupted", style="yellow")
        return 130
    except BrokenPipeError:
        # The reader of our stdout is gone, as after `duoln list | head -1`; nothing is left to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def run_task(task: Task, argv: Sequence[str], prog: str | None = None, description: str | None = None,
             preset: str = "small") -> int:
    """A command line of its own for one task: every variant, with the options of `duoln run`; the exit code.

    `--paper` chooses the preset "paper", where the task has one.
    """
    parser = argparse.ArgumentParser(prog=prog, description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    if "paper" in task.presets:
        parser.add_argument("--paper", action="store_true", help="the paper's protocol")
    add_run_options(parser)

    def run(args: argparse.Namespace) -> int:
        chosen = "paper" if getattr(args, "paper", False) else preset
        return run_variants(task, list(task.variants), args, chosen, {})

    return _guarded(lambda: run(parser.parse_args(argv)))


# list -------------------------------------------------------------------------------------------------

def _list(args: argparse.Namespace) -> int:
    from duoln import console
    from duoln.tasks.registry import Registry

    registry = Registry()
    if args.json:
        console.put(json.dumps({
            "tasks": [{"name": f.task.name, "title": f.task.title, "paper": f.task.paper,
                       "variants": list(f.task.variants), "presets": list(f.task.presets),
                       "distribution": f.distribution} for f in registry.tasks.values()],
            "broken": [b._asdict() for b in registry.broken]}))
        return 0
    rows = [(f.task.name, f.task.title, ", ".join(f.task.variants), ", ".join(f.task.presets), f.distribution)
            for f in registry.tasks.values()]
    broken = [(b.name, b.reason, "-", "-", b.distribution) for b in registry.broken]
    console.show(console.rows_table("Tasks", ("task", "what", "variants", "presets", "from"), [*rows, *broken],
                                    bad=range(len(rows), len(rows) + len(broken))), data=True)
    return 0


# run --------------------------------------------------------------------------------------------------

def _run(args: argparse.Namespace) -> int:
    from duoln.tasks import parse_settings
    from duoln.tasks.registry import find_task

    task = find_task(args.task)
    names = list(task.variants) if args.variant == "all" else args.variant.split(",")
    return run_variants(task, names, args, args.preset, parse_settings(args.settings))


def run_variants(task: Task, names: Sequence[str], args: argparse.Namespace, preset: str | None,
                 settings: Mapping[str, Any]) -> int:
    """Train some variants of a task one after another, then show, draw and print what they gave."""
    if args.tf32:
        os.environ["MLX_ENABLE_TF32"] = os.environ["CUPY_TF32"] = "1"
    from duoln import console, runtime
    from duoln.runfolder import RunFolder
    from duoln.tasks import make_config
    from duoln.tasks.registry import Registry
    from duoln.train import Interrupted, Trainer, fit

    given = {key: getattr(args, key) for key in ("seed", "epochs", "batch_size") if getattr(args, key) is not None}
    configs = {name: make_config(task, name, preset, {**settings, **given}) for name in names}
    for name, cfg in configs.items():
        _check_config(task, name, cfg)
    backend, why = runtime.choose(args.backend)
    console.say(f"backend: {why}")
    top = _run_folder(task, list(configs), args.out, args.resume == "auto")
    splits: Splits | None = None
    results: list[dict[str, Any]] = []
    listeners = Registry().listeners()
    made_for: tuple[Any, ...] = ()
    for name, cfg in configs.items():
        if splits is None or made_for != _data_settings(task, cfg):
            console.say(f"data: looking for what {task.name} needs (DUOLN_DATA, the cache, then mirrors)")
            splits, made_for = task.data(cfg), _data_settings(task, cfg)
            _say_data(task, splits)
        folder = RunFolder(top / name, backend)
        trainer = Trainer(task, name, cfg, splits, backend)
        try:
            results.append(fit(trainer, folder, [console.ProgressDisplay(task.columns), *listeners],
                               resume=args.resume == "auto"))
        except Interrupted:
            _show_results(task, splits, backend, [*results, trainer.result()], top, args.json)
            raise
        finally:
            folder.close()
    assert splits is not None
    _show_results(task, splits, backend, results, top, args.json)
    return 0


def _check_config(task: Task, name: str, cfg: Config) -> None:
    for key, least in (("epochs", 0), ("batch_size", 1), ("evaluate_every", 0)):
        if getattr(cfg, key) < least:
            raise UsageError(f"[{task.name} {name}] expected {key} of at least {least}, found {getattr(cfg, key)}")


def _data_settings(task: Task, cfg: Config) -> tuple[Any, ...]:
    """The configuration without what a variant changes: equal ones share their data."""
    changed = {key for overrides in task.variants.values() for key in overrides}
    return tuple((key, value) for key, value in vars(cfg).items() if key not in changed)


def _say_data(task: Task, splits: Splits) -> None:
    from duoln import console

    console.say(f"data: {splits.dataset.label}", style="" if splits.dataset.rung == "original" else "yellow")
    if splits.dataset.rung == "synthetic":
        console.say("  the original is not to be had here, or was not asked for; see `duoln doctor` and DUOLN_DATA. "
                    "Figures on made data say nothing about the paper's", style="yellow")


def _run_folder(task: Task, variants: Sequence[str], out: Path | None, resume: bool) -> Path:
    if out is None and resume:
        earlier = sorted(p for p in Path("runs").glob(f"{task.name}-*") if p.is_dir())
        if not earlier:
            raise CheckpointError(f"--resume auto: no run of {task.name} below runs/; name one with --out")
        return earlier[-1]
    if out is None:
        return Path("runs") / f"{task.name}-{datetime.now():%Y%m%d-%H%M%S}"
    held = [name for name in variants if (out / name / "config.json").exists()]
    if held and not resume:
        raise CheckpointError(f"{out}: already holds a run of {', '.join(held)}; go on with --resume auto, "
                              "or choose another --out")
    return out


def _show_results(task: Task, splits: Splits, backend: Backend, results: Sequence[Mapping[str, Any]], top: Path,
                  as_json: bool) -> None:
    from duoln import console, report
    from duoln.train import summarize

    console.show_results(task, splits.dataset, results)
    written = _write_curves(task, [top], top)
    console.say(f"run folder: {top}  ({', '.join(p.name for p in written)})")
    if not report.can_draw():
        console.say('  for a picture of the curves: pip install matplotlib')
    if as_json:
        console.put(json.dumps(summarize(results, splits, backend)))


def _write_curves(task: Task, runs: Sequence[Path], out: Path) -> list[Path]:
    from duoln import report

    curves = report.read_curves(runs)
    written = [report.write_csv(curves, out / "curves.csv")]
    if report.can_draw():
        written.append(report.draw(task, curves, out / "curves.png"))
    return written


# report -----------------------------------------------------------------------------------------------

def _report(args: argparse.Namespace) -> int:
    from duoln import console, report
    from duoln.tasks.registry import find_task

    curves = report.read_curves(args.runs)
    names = sorted({c.task for c in curves})
    if len(names) > 1:
        raise UsageError(f"[report] expected runs of one task, found {', '.join(names)}")
    task = find_task(names[0])
    if args.json:
        console.put(json.dumps({"task": task.name, "runs": [
            {"run": str(c.path), "variant": c.variant, "dataset": c.dataset._asdict(), "config": dict(c.config),
             "evaluations": c.points, "result": c.result} for c in curves]}))
    for label in dict.fromkeys(c.dataset for c in curves):
        rows = [_report_row(c) for c in curves if c.dataset == label]
        console.show_results(task, label, rows)
    out = args.out or args.runs[0]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be made: {error.strerror or error}") from error
    for path in _write_curves(task, args.runs, out):
        console.say(f"wrote {path}")
    return 0


def _report_row(curve: Any) -> dict[str, Any]:
    last = curve.points[-1] if curve.points else {"step": 0, "epoch": 0.0, "wall_s": 0.0}
    epochs = last["epoch"]
    return {**last, "variant": curve.variant, "batch_size": curve.config["batch_size"], "epochs": epochs,
            "steps": last["step"], "seconds_per_epoch": last["wall_s"] / epochs if epochs else 0.0}


# doctor -----------------------------------------------------------------------------------------------

def _doctor(args: argparse.Namespace) -> int:
    from duoln import console, doctor

    facts = doctor.examine(with_ops=args.ops)
    if args.json:
        console.put(json.dumps(facts))
        return 0
    # Lines and not a table: a reason or a pip line must stay whole, to be copied.
    for b in facts["backends"]:
        console.put(f"{b['name']}: {'usable, ' + b['device'] if b['usable'] else 'not usable'}")
        for key, text in (("reason", b["reason"]), ("to mend it", b["remedy"]), *b["info"].items()):
            if text:
                console.put(f"  {key}: {text}")
    console.put(f"auto chooses {facts['choice']}")
    for line in facts["advice"]:
        console.put(f"advice: {line}")
    console.put(f"DUOLN_DATA: {facts['data']['folders'] or 'not set'}; cache: {facts['data']['cache']}")
    if args.ops:
        names = [b["name"] for b in facts["backends"] if b["usable"]]
        console.show(console.rows_table("Rules", ("operator", *names),
                                        [(op, *(rules[n] for n in names)) for op, rules in facts["ops"].items()]),
                     data=True)
    plugins = [(p["name"], p["distribution"], p["reason"] or "good") for p in facts["plugins"]]
    console.show(console.rows_table("Plug-ins", ("plug-in", "from", "state"), plugins,
                                    bad=[i for i, p in enumerate(facts["plugins"]) if p["reason"]]), data=True)
    return 0


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text!r}")
    return int(text)


def _selftest(args: argparse.Namespace) -> int:
    from duoln import console, selftest
    from duoln.bench import machine
    from duoln.runtime import choose

    backend, why = choose(args.backend)
    console.say(why)
    cases = selftest.cases(args.one_of_each)
    reports = selftest.by_rule(selftest.run(backend, cases, args.repeats))
    failures = [line for r in reports for line in r.failures]
    facts = {"backend": machine.backend_facts(backend), "host": machine.host(), **machine.side()}
    if args.json:
        console.put(json.dumps({**facts, "rules": [r._asdict() for r in reports]}))
        return 1 if failures else 0
    rows = [(r.op, r.rule, str(r.cases), str(len(r.failures)), f"{r.error:.2g}", "yes" if r.repeats else "no")
            for r in reports]
    title = "Every rule against float64; error: the largest, as a share of what is allowed"
    console.show(console.rows_table(title, ("operator", "rule", "cases", "failed", "error", "repeats"), rows,
                                    [i for i, r in enumerate(reports) if r.failures], whole=range(6)), data=True)
    for line in failures:
        console.put(f"failed: {line}")
    for key, value in {**facts["backend"], **facts["host"], "duoln": facts["duoln"], "flags": facts["flags"]}.items():
        console.put(f"{key}: {value}")
    return 1 if failures else 0
