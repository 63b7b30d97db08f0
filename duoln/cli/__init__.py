"""The `duoln` command. Exit codes: 0 done, 1 failed, 2 usage, 3 no usable backend, 4 data missing or
corrupt, 5 diverged, 6 out of memory, 7 done, but the result could not be written to stdout, and 128 more than the
signal that stopped it: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

import duoln
from duoln.cli import bench, facts, help, keep, listing, new_task, one_task, report, run, trained
from duoln.cli.guard import exit_process, run_to_exit_code
from duoln.cli.parser import Parser, add_commands_of_plugins
from duoln.cli.run import run_task
from duoln.system import variables

__all__ = ["build_parser", "command", "main", "run_task"]

EXAMPLES = """examples:
  duoln list                                         tasks, variants and presets
  duoln show mnist                                   its settings, and what each means
  duoln run mnist                                    every variant, then a table
  duoln run mnist --variant ln --preset paper        one variant, the paper's protocol
  duoln run mnist --set learning_rate=0.003 --set epochs=5
  duoln run mnist --seed 0,1,2                       each variant with three seeds: median and range
  duoln run mnist --out runs/a --resume auto         go on where runs/a stopped
  duoln run mnist --variant ln --backend mlx --ranks 2   two processes, one model
  srun duoln run mnist --variant ln --ranks slurm    one model in all processes of a Slurm job
  duoln summary mnist --variant ln                   layers, shapes, parameters and memory of its model
  duoln find-rate mnist --variant ln                 which learning rates it can be trained with
  duoln run mnist --watch norm-stats                 statistics of every layer while it trains
  duoln run mnist --log-to tensorboard               tensorboard --logdir runs shows it while it trains
  duoln report runs                                  all runs below runs, a table a task
  duoln report runs/a runs/b --html page.html        curves of several runs, as a page for a browser
  duoln sample runs/a/ln --out digits.png            what a trained model generates
  duoln evaluate runs/a/ln                           a trained model by the task's own protocol
  duoln new-task my_task                             a package with a task of your own, to start from
  duoln doctor                                       what this machine can use, and what mends the rest
  duoln compile --march x86-64-v3 --out /opt/kernels    the CPU's kernels, for an image without a compiler
  duoln selftest                                     every fused rule of this machine against float64
  duoln bench train --task mnist --peer torch        our training step beside PyTorch's
  duoln bench ops --small --json here.json           operators beside a plain copy, with every sample in a file
  duoln bench survey --out survey                    all that one GPU or Mac can show, in nine minutes
  duoln compare here.json there.json                 two machines beside each other
  duoln help guide                                   a page of the documentation; alone, the list of pages
"""


def build_parser(word: str | None = None) -> argparse.ArgumentParser:
    """The command line.

    Args:
        word: its first word. Plug-ins, which may bring commands, are loaded unless this is a command of duoln.
    """
    parser = Parser(prog="duoln", description="Layer-normalised networks on any vendor's hardware.", epilog=EXAMPLES,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="version", version=f"duoln {duoln.__version__}",
                        help="show the version and end")
    parser.set_defaults(run=lambda args: parser.print_help())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    for add in (listing.add_commands, facts.add_commands, trained.add_commands, run.add_command, report.add_command,
                keep.add_command, one_task.add_commands, new_task.add_command, bench.add_command, help.add_command):
        add(commands)
    if word not in (*commands.choices, "--version"):
        add_commands_of_plugins(commands, word)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code, which is 2 for a wrong command line and 0 for `--help` or no word at all."""
    words = list(sys.argv[1:] if argv is None else argv)

    def run() -> int:
        variables.check_switches()
        args = build_parser(next(iter(words), None)).parse_args(words)
        args.words = words
        code: int | None = args.run(args)
        return code or 0

    return run_to_exit_code(run, words)


def command() -> NoReturn:
    """Run the command line of this process, and end the process with its exit code."""
    exit_process(main())
