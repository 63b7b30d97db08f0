"""`duoln run`, the tables and files at its end, and the same command for one task, which the examples use."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from duoln import runtime
from duoln.backends.protocol import Backend
from duoln.cli import console, facts, planned
from duoln.cli.guard import as_document, run_to_exit_code
from duoln.cli.one_task import say_absent, say_data
from duoln.cli.parser import Parser
from duoln.cli.ranks import launch, parse_ranks, take_rank
from duoln.cli.report import distinguishing_columns, result_row, write_curves, write_layers
from duoln.errors import (
    CheckpointError,
    DataError,
    DivergedError,
    DuolnError,
    Interrupted,
    MemoryExhaustedError,
    UsageError,
)
from duoln.pictures import drawing
from duoln.runs.curve import Curve
from duoln.runs.curves import read_curves
from duoln.runs.places import run_folders
from duoln.runs.precision import FLOAT32, PRECISIONS
from duoln.runs.series import ENDINGS, By, series_of
from duoln.runs.settings import Command, Job
from duoln.system.paths import path_argument
from duoln.tasks import registry
from duoln.tasks.boundary import IsolatedListener, guard_task
from duoln.tasks.events import Listener
from duoln.tasks.task import Task
from duoln.tasks.values import Dataset
from duoln.training.norm_stats import WATCHES, Watch
from duoln.training.session import Session
from duoln.training.train_step import make_step
from duoln.training.trainer import Trainer

if TYPE_CHECKING:
    from duoln.distributed.rank_info import RankInfo


def add_command(commands: Any) -> None:
    """Add `run` to the command line."""
    run = commands.add_parser("run", help="train a task")
    run.add_argument("task")
    _add_what_to_train(run)
    run.add_argument("--ranks", type=parse_ranks, default=1, metavar="N",
                     help="train one model in N processes of this machine, each with its share of every batch (MLX; "
                          "CuPy: a GPU each). Or auto, slurm, openmpi, torchrun: be one of the processes that this "
                          "launcher has started, on one machine or several")
    facts.add_plugin_option(run)
    add_run_options(run)
    run.set_defaults(run=_run)


def _add_what_to_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--variant", metavar="NAME[,NAME]", help="what to train (default: all, every variant)")
    facts.add_settings_options(parser)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The options that `duoln run` and the examples share."""
    parser.add_argument("--backend", choices=runtime.CHOICES, help="default: DUOLN_BACKEND, else auto")
    parser.add_argument("--seed", type=_seeds, metavar="N[,N]",
                        help="0 to 2^64 - 1 (default 0); of several, each variant is trained with each, and the table "
                             "has their median and range")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--out", type=path_argument, metavar="DIR",
                        help="the run folder (default: runs/TASK-DATE-TIME); nothing is kept elsewhere, so removing "
                             "the folder removes the runs")
    parser.add_argument("--resume", choices=("auto", "anyway"), help="go on from the newest good checkpoint in --out, "
                        "or in the newest run of this task below runs/, with the settings of that folder; anyway: even "
                        "where this machine's arithmetic gives other last bits")
    parser.add_argument("--debug-nans", action="store_true",
                        help="if a step diverges, run it again and tell which operator made the first such value")
    parser.add_argument("--watch", choices=WATCHES, help="measure mean and variance of every layer's output, and the "
                        "norm of its gradient, at the start and at every evaluation, in a pass beside the training")
    parser.add_argument("--watch-every", type=facts.count, metavar="N", help="measure them every N updates instead")
    parser.add_argument("--tf32", action="store_true", help="let the GPU round float32 products to TF32")
    parser.add_argument("--precision", choices=PRECISIONS,
                        help="bf16: store activations and a copy of the weights in 16 bits, and compute in float32 "
                             "(default: float32, or that of a resumed run)")
    parser.add_argument("--log-to", choices=("tensorboard",), help="write updates and evaluations for TensorBoard into "
                        "the run folder, too")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object on stdout")


def _seeds(text: str) -> list[int]:
    words = text.split(",")
    if not all(word.isascii() and word.lstrip("-").isdecimal() for word in words):
        raise argparse.ArgumentTypeError(f"expected a number, or several with commas between them, found {text!r}")
    seeds = [int(word) for word in words]
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"expected different seeds, found {text!r}")
    return seeds


def run_task(make: Callable[[], Task], argv: Sequence[str], prog: str | None = None, description: str | None = None,
             preset: str = "small", variants: Sequence[str] = ()) -> int:
    """Run a command line for one task with the options of `duoln run`; returns the exit code.

    Args:
        make: makes the task, such as its class; an exception of it becomes an exit code too.
        argv: the command line.
        prog: the program's name in messages.
        description: the description that `--help` prints.
        preset: the preset to train; `--paper` chooses "paper", if the task has it.
        variants: those to train; none named are all.
    """
    def run() -> int:
        task = make()
        parser = Parser(prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        if "paper" in task.presets:
            parser.add_argument("--paper", action="store_const", const="paper", dest="preset",
                                help="the paper's protocol")
        _add_what_to_train(parser)
        add_run_options(parser)
        parser.set_defaults(plugins=None, words=argv, flags=list(parser._option_string_actions))
        args = parser.parse_args(argv)
        # The task may not belong to a plug-in, so its module is used as the name of the distribution.
        return _train(guard_task(task, task.owner or type(task).__module__), args, preset, variants)

    return run_to_exit_code(run, argv)


def _run(args: argparse.Namespace) -> int:
    task = registry.find_task(args.task, args.plugins)
    facts.variants_of(task, args.variant)
    for option, is_given in (("--debug-nans", args.debug_nans), ("--watch", args.watch is not None)):
        if args.ranks != 1 and is_given:
            raise UsageError(f"[ranks] {option} wants one process: run without --ranks")
    info = take_rank(args.ranks) if isinstance(args.ranks, str) else None
    if isinstance(args.ranks, int) and args.ranks != 1:
        return launch(args.ranks, args)
    return _train(task, args, info=info)


def _train(task: Task, args: argparse.Namespace, usual: str | None = None, variants: Sequence[str] = (),
           info: RankInfo | None = None) -> int:
    """Train some variants of a task one after another, then show, draw and print their results.

    Args:
        task: the task.
        args: the options of the command line.
        usual, variants: the preset and the variants of a run for which none is named; no variants are all of them.
        info: the rank of this process among several that train each model together.
    """
    if args.watch_every is not None and args.watch is None:
        raise UsageError("[run] --watch-every: expected --watch too")
    if args.tf32:
        os.environ["MLX_ENABLE_TF32"] = os.environ["CUPY_TF32"] = "1"
    from duoln.distributed.joining import join_ranks

    loggers = _loggers(args.log_to)
    settings = facts.settings_of(task, args, "seed", "epochs", "batch_size")
    seeds = [] if args.seed is None else settings.pop("seed")
    asked = Command(facts.variants_of(task, args.variant) or list(variants), args.preset, settings, seeds,
                    args.precision)
    follows = info is not None and info.rank > 0
    plan = planned.plan(task, asked, usual, args.out, args.resume is not None, follows)
    before = planned.backend_before(plan) if args.resume and info is None else None
    backend, why = runtime.choose(args.backend or before)
    console.say(f"backend: {why}")
    ranks = join_ranks(info, backend, console.say) if info else None
    if ranks is not None:
        plan = planned.plan_of_first(task, ranks, plan, args.precision)
    for word in dict.fromkeys(plan.precisions.values()):
        if word != FLOAT32:
            console.say(f"precision: {word}")
    ended: list[Ended] = []
    failures: dict[str, DuolnError] = {}
    listeners = registry.Registry(asked=args.plugins).listeners(console.say)
    watch = None if args.watch is None else Watch(args.watch, args.watch_every)
    say_absent()
    if task.paper:  # others say what they read or make when they have it
        console.say(f"data: looking for what {task.name} needs (DUOLN_DATA, the cache, then mirrors)")
    told: Any = None
    trainer: Any = None
    splits: Any = None
    for job, cfg in plan.configs.items():
        trainer = splits = None  # the data of the run before need not be there beside its own
        splits = task.data(cfg)
        runtime.foresee(backend, make_step(task, task.model(cfg), task.optimizer(cfg, splits.updates(cfg.epochs))))
        if told != (splits.dataset, splits.remarks):
            told = splits.dataset, splits.remarks
            say_data(splits)
        trainer = Trainer(task, job.variant, cfg, splits, backend, args.debug_nans, ranks, plan.precisions[job])
        if follows:
            Session(trainer).follow()
            continue
        if not ended:
            if args.out is None and args.resume is None:
                plan = plan._replace(top=planned.unused_folder(plan.top))
            planned.write_run_requests(task, plan)
        status = "done"
        try:
            folder = plan.top / job.name
            display = console.ProgressDisplay(task.columns, task.x_axis, job.name)
            figures = Session(trainer, [display, *loggers(folder), *listeners], watch).run(folder, args.resume)
        except Interrupted as end:
            stop = Interrupted(f"{end}; go on with\n{planned.resume_command(args.words, plan.top)}", end.number)
            ended.append(Ended(job, splits.dataset, "interrupted", trainer.result()))
            show_ended(task, backend, ended, plan.top, args.json, as_document(stop, str(stop), stop.exit_code))
            raise stop from None
        except (DivergedError, MemoryExhaustedError) as error:
            if ranks is not None:  # the other processes may not know
                raise
            figures, status = trainer.result(), "diverged" if isinstance(error, DivergedError) else "failed"
            failures[job.name] = type(error)(str(error))  # without the frames, which hold the state
            if len(plan.configs) > 1:
                console.say(f"{job.name}: {error}", style="bold red")
        ended.append(Ended(job, splits.dataset, status, figures))
    if ranks is not None:
        ranks.leave()
    if follows:
        return 0
    failure = next(iter(failures.values()), None)
    if failure is not None and len(plan.configs) > 1:  # one error for all runs that failed, of the class of the first
        failure = type(failure)("; ".join(f"{name}: {error}" for name, error in failures.items()))
    show_ended(task, backend, ended, plan.top, args.json,
               None if failure is None else as_document(failure, str(failure), failure.exit_code))
    if failure is not None:
        raise failure
    return int(any(each.failed for each in listeners))  # the runs are whole; a line has named it


def _loggers(name: str | None) -> Callable[[Path], list[Listener]]:
    """A function that makes the listeners of --log-to for the folder of a run."""
    if name is None:
        return lambda folder: []
    try:
        from duoln.runs.tensorboard import TensorBoard
    except ImportError as error:
        raise UsageError(f"[run] --log-to {name}: {error}; pip install tensorboardX") from error
    return lambda folder: [IsolatedListener(TensorBoard(folder), f"--log-to {name}", console.say)]


class Ended(NamedTuple):
    """One run of the command."""

    job: Job
    dataset: Dataset
    status: str
    """"done", "interrupted", "diverged" or "failed"."""
    figures: Mapping[str, Any]


def show_ended(task: Task, backend: Backend, ended: Sequence[Ended], top: Path, as_json: bool,
               error: Mapping[str, Any] | None = None) -> None:
    """Write the curves of the runs, and show their figures: a table for each data set.

    Args:
        task, backend: of the runs.
        ended: the runs.
        top: the folder that holds them.
        as_json: stdout gets one JSON object, and stderr the tables.
        error: the error with which the command ends, for the JSON object.
    """
    by: By = "seed" if len({run.figures["seed"] for run in ended}) > 1 else "run"
    written: list[Path] = []
    try:  # the files come first: stdout may be closed
        curves = _readable(top, {top / run.job.name for run in ended})
        written += [*write_curves(task, series_of(task, curves, by), top, by), *write_layers(task, curves, top)]
    finally:  # a file or picture that fails does not cost the table
        for dataset in dict.fromkeys(run.dataset for run in ended):
            _show_table(task, dataset, [run for run in ended if run.dataset == dataset], top, by, not as_json)
    console.say(f"run folder: {top}  ({', '.join(p.name for p in written)})")
    if not drawing.can_draw():
        console.say(f"  for a picture of the curves: {drawing.refusal()}")
    if as_json:
        datasets = {run.dataset for run in ended}
        console.put_json({
            "dataset": next(iter(datasets))._asdict() if len(datasets) == 1 else None, "backend": backend.name,
            "device": backend.device,
            "results": [{**run.figures, "status": run.status, "dataset": run.dataset._asdict()} for run in ended],
            **({} if error is None else {"error": error})})


def _readable(top: Path, own: Container[Path]) -> list[Curve]:
    """The runs below a folder: those of this command, and of the others those that can be read."""
    curves = []
    for folder in run_folders(top):
        try:
            curves += read_curves([folder])
        except (CheckpointError, DataError) as error:
            if folder in own:
                raise
            console.say(f"left out: {error}", style="yellow")
    return curves


def _show_table(task: Task, dataset: Dataset, ended: Sequence[Ended], top: Path, by: By, data: bool) -> None:
    if by == "seed":
        series = series_of(task, read_curves([top / run.job.name for run in ended]), by)
        for line in (line for s in series for line in s.remarks()):
            console.say(line, style="yellow")
        rows, columns = [result_row(task, s) for s in series], distinguishing_columns(series, by)
        console.show_results(task, dataset, rows, columns, data=data)
        return
    endings = [run.status if run.status in ENDINGS else "" for run in ended]
    apart = {"ended": endings} if any(endings) else {}
    console.show_results(task, dataset, [run.figures for run in ended], apart, data=data)
