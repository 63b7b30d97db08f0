"""`duoln compile`: the kernels of the NumPy backend, compiled before they are needed."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from duoln.system.paths import path_argument

_DESCRIPTION = """Compile the kernels of the NumPy backend ahead: for this CPU, or for an image without a compiler.

  duoln compile                                             all for this CPU, where the first use would put them
  duoln compile --march x86-64-v3 --out /opt/kernels        for CPUs with AVX2
  DUOLN_KERNELS=/opt/kernels duoln run mnist                on a machine of that kind, with or without a compiler

Libraries for several CPUs may share a folder: a machine takes those with the widest vectors that it has. A library
that its CPU cannot run is refused there, with the reason. DUOLN_CXX names the compiler,
a program or a line such as "ccache g++".
"""


def add_command(commands: Any) -> None:
    """Add `compile` to the command line."""
    parser = commands.add_parser("compile", help="compile the kernels of the NumPy backend ahead",
                                 description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--march", default="native", metavar="CPU",
                        help="the CPU that they are for, as the compiler's -march names it (default: this one)")
    parser.add_argument("--out", type=path_argument, metavar="DIR",
                        help="a folder that every user may read (default: DUOLN_KERNELS, else the cache)")
    parser.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    parser.set_defaults(run=_compile)


def _compile(args: argparse.Namespace) -> int:
    from duoln import runtime
    from duoln.cli import console
    from duoln.tasks.registry import Registry

    Registry()  # the plug-ins that it loads may bring kernels
    made = runtime.compile_kernels(args.march, args.out)
    if args.json:
        console.put_json(made)
        return 0
    for library in made["libraries"]:
        console.put(str(Path(made["folder"]) / library["name"]))
    use = "they are where duoln looks for them" if args.out is None else \
        f"use them with DUOLN_KERNELS={Path(made['folder']).absolute()}"
    if os.environ.get("DUOLN_NATIVE") == "0":
        use += "; DUOLN_NATIVE=0 is set, and no run uses them before it is unset"
    new = sum(library["new"] for library in made["libraries"])
    console.say(f"{len(made['libraries'])} libraries, {new} of them new, for {made['platform']}, {made['march']}, "
                f"vectors of {made['vector_bits']} bits, by {made['compiler']}; {use}")
    return 0
