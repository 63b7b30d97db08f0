"""The commands about this machine: `duoln doctor`, `duoln selftest` and `duoln compile`."""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duoln
from duoln import runtime
from duoln.bench import machine
from duoln.cli import console
from duoln.cli.rows_table import RowsTable
from duoln.core.arguments import did_you_mean
from duoln.errors import UsageError
from duoln.system.paths import path_argument
from duoln.tasks.contract import ALL
from duoln.tasks.registry import Registry, load_plugins
from duoln.tasks.settings import parse_settings
from duoln.tasks.task import Task


def add_commands(commands: Any) -> None:
    """Add `doctor`, `selftest` and `compile` to the command line."""
    doctor = commands.add_parser("doctor", help="which backends this machine can use, and how to repair the others")
    doctor.add_argument("--ops", action="store_true", help="which rule each operator runs on each backend")
    doctor.add_argument("--markdown", action="store_true", help="with --ops: the fused rules as a table of a page")
    doctor.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    add_plugin_option(doctor)
    doctor.set_defaults(run=_doctor)

    test = commands.add_parser("selftest", help="compare every fused rule of this machine's backend with float64")
    test.add_argument("--backend", help="default: DUOLN_BACKEND, else auto")
    test.add_argument("--repeats", type=count, default=2, metavar="N", help="runs that must be equal to the bit (2)")
    test.add_argument("--op", action="append", metavar="NAME", help="only the cases of this operator, one of duoln or "
                      "one that a plug-in registers; may be repeated")
    test.add_argument("--one-of-each", action="store_true", help="only the largest case of each operator and variant")
    test.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    test.set_defaults(run=_selftest)

    parser = commands.add_parser("compile", help="compile the kernels of the NumPy backend ahead",
                                 description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--march", default="native", metavar="CPU",
                        help="the CPU that they are for, as the compiler's -march names it (default: this one)")
    parser.add_argument("--out", type=path_argument, metavar="DIR",
                        help="a folder that every user may read (default: DUOLN_KERNELS, else the cache)")
    parser.add_argument("--json", action="store_true", help="as one JSON object on stdout")
    parser.set_defaults(run=_compile)


def add_plugin_option(parser: argparse.ArgumentParser) -> None:
    """`--plugin NAME`, for the commands that load plug-ins."""
    parser.add_argument("--plugin", action="append", metavar="NAME", dest="plugins",
                        help="load only the plug-in of this name; may be repeated")


def add_settings_options(parser: argparse.ArgumentParser) -> None:
    """`--preset` and `--set`, for the commands that take a task's settings."""
    parser.add_argument("--preset", metavar="NAME", help="paper, small or smoke; see `duoln show TASK`")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings",
                        help="a setting of the task, see `duoln show TASK`; may be repeated")


def settings_of(task: Task, args: argparse.Namespace, *keys: str) -> dict[str, Any]:
    """The settings that `--set` asks for, as text, and those of `keys` that their own options give.

    Raises:
        UsageError: no KEY=VALUE; the key is no setting of the task but an option of the command; or a setting is given
            by its option and by `--set`.
    """
    settings = parse_settings(args.settings)
    known = {field.name for field in dataclasses.fields(task.config)}
    for key in settings.keys() - known:
        flag = f"--{key.replace('_', '-')}"
        if flag in args.flags:
            raise UsageError(f"[--set] expected a setting of {task.name}, found {key!r}, which is an option of the "
                             f"command: {flag}")
    given = {key: getattr(args, key) for key in keys if getattr(args, key) is not None}
    for key in given.keys() & settings.keys():
        raise UsageError(f"[--set] expected --{key.replace('_', '-')} or --set {key}, found both")
    return settings | given


def variants_of(task: Task, text: str | None) -> list[str]:
    """The variants that `--variant` names; none where it is not given.

    Raises:
        UsageError: it names one twice.
    """
    names = [] if text is None else list(task.variants) if text == ALL else text.split(",")
    if len(set(names)) < len(names):
        raise UsageError(f"[{task.name}] --variant: expected different variants, found {text!r}")
    return names


def count(text: str) -> int:
    """The value of an option that is a number of at least 1."""
    if not text.isascii() or not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text!r}")
    return int(text)


def _doctor(args: argparse.Namespace) -> int:
    from duoln import doctor

    if args.markdown and (args.json or not args.ops):
        raise UsageError("[doctor] --markdown: expected --ops too, and no --json")
    facts = doctor.examine(with_ops=args.ops, asked=args.plugins)
    if args.json:
        console.put_json(facts)
        return 0
    if args.markdown:
        console.put(doctor.rules_table([b["name"] for b in facts["backends"] if b["usable"]]))
        return 0
    # These are lines, not a table, because a reason or a pip command must stay on one line to be copied.
    for b in facts["backends"]:
        console.put(f"{b['name']}: {'usable, ' + b['device'] if b['usable'] else 'not usable'}")
        for key, text in (("reason", b["reason"]), ("remedy", b["remedy"]), *b["info"].items()):
            if text:
                console.put(f"  {key}: {text}")
        for line in _of_proofs(facts["proofs"].get(b["name"], []), b["info"]):
            console.put(f"  {line}")
    console.put(f"auto chooses {facts['choice']}")
    native = facts["native"]
    console.put(f"rules of numpy: {native['rules']}, " + (
        f"{native['compiler']} {native['flags']}, vectors of {native['vector_bits']} bits, kept in {native['folder']}"
        if native["rules"] == "compiled" else f"{native['reason']}; for faster ones: {native['remedy']}"))
    for file, why in native.get("absent", {}).items():
        console.put(f"  {file} is interpreted: {why}")
    load = "" if facts["load"] is None else f"; load of the last minute {facts['load']:.1f}"
    console.put(f"threads: {facts['threads']} for the rules of numpy{load}")
    for line in facts["advice"]:
        console.put(f"advice: {line}")
    console.put(f"DUOLN_DATA: {facts['data']['folders'] or 'not set'}; cache: {facts['data']['cache']}")
    if args.ops:
        names = [b["name"] for b in facts["backends"] if b["usable"]]
        console.show(RowsTable("Rules", ("operator", *names),
                               [(op, *(rules[n] for n in names)) for op, rules in facts["ops"].items()]), data=True)
        console.put("16 bits: the rule takes float16 and bfloat16 as they are stored; the others get them in float32")
        for line in facts["remarks"]:
            console.put(line)
    plugins = [(p["name"], p["distribution"], p["reason"] or ", ".join(p["brings"]) or "nothing")
               for p in facts["plugins"]]
    console.show(RowsTable("Plug-ins", ("plug-in", "from", "brings"), plugins,
                           bad=[i for i, p in enumerate(facts["plugins"]) if p["reason"]]), data=True)
    return 0


def _of_proofs(verdicts: list[dict[str, str]], info: dict[str, str]) -> Iterator[str]:
    """The number of rules proved on this device, and all that is known of those that were set aside."""
    wrong = [v for v in verdicts if v["state"] == "set aside"]
    if verdicts:
        proved = sum(v["state"] == "proved" for v in verdicts)
        yield f"rules proved on this device: {proved}, set aside: {len(wrong)}"
    for v in wrong:
        op = " ".join(filter(None, (v["op"], v["variant"])))
        yield f"set aside: {op} '{v['rule']}' of {v['stored']}, case {v['case']}:"
        yield from (f"  {line}" for line in v["reason"].splitlines())
    if wrong:
        yield (f"please send us these lines with: duoln {duoln.__version__}, "
               + ", ".join(f"{key} {value}" for key, value in info.items()))
        yield "DUOLN_PROVE=again proves the rules once more"


def _selftest(args: argparse.Namespace) -> int:
    from duoln.testing import selftest

    backend, why = runtime.choose(args.backend)
    console.say(why)
    for broken in load_plugins():
        console.say(f"plug-in '{broken.name}' of {broken.distribution} is not tried: {broken.reason}", style="red")
    chosen = list(selftest.chosen(backend, args.one_of_each))
    for name in args.op or ():
        if all(case.op != name for case in chosen):
            raise UsageError(f"[selftest] --op: expected an operator that has cases, found {name!r}"
                             f"{did_you_mean(name, {case.op for case in chosen})}")
    if args.op:
        chosen = [case for case in chosen if case.op in args.op]
    reports = selftest.by_rule(selftest.run(backend, chosen, args.repeats))
    failures = [line for r in reports for line in r.failures]
    untried = [] if args.op else selftest.untried(backend, reports)
    facts = {"backend": machine.backend_facts(backend), "host": machine.host(), **machine.process_facts()}
    if args.json:
        console.put_json({**facts, "rules": [r._asdict() for r in reports], "untried": untried})
        return 1 if failures else 0
    rows = [(r.op, r.rule, str(r.cases), str(len(r.failures)), f"{r.error:.2g}", "yes" if r.repeats else "no")
            for r in reports]
    title = "Every rule against float64; error: the largest, as a share of what is allowed"
    console.show(RowsTable(title, ("operator", "rule", "cases", "failed", "error", "repeats"), rows,
                           [i for i, r in enumerate(reports) if r.failures], whole=range(6)), data=True)
    for line in failures:
        console.put(f"failed: {line}")
    for line in (line for r in reports for line in r.near):
        console.put(f"near: {line}")
    for line in untried:
        console.put(f"not tried, because its package registers no case that reaches it: {line}")
    for key, value in {**facts["backend"], **facts["host"], "duoln": facts["duoln"], "flags": facts["flags"]}.items():
        console.put(f"{key}: {value}")
    failing = sum(bool(r.failures) for r in reports)
    console.put(f"{failing} of {len(reports)} rules fail" if failing else f"all {len(reports)} rules agree")
    return 1 if failures else 0


_DESCRIPTION = """Compile the kernels of the NumPy backend ahead: for this CPU, or for an image without a compiler.

  duoln compile                                             all for this CPU, where the first use would put them
  duoln compile --march x86-64-v3 --out /opt/kernels        for CPUs with AVX2
  DUOLN_KERNELS=/opt/kernels duoln run mnist                on a machine of that kind, with or without a compiler

Libraries for several CPUs may share a folder: a machine takes those with the widest vectors that it has. A library
that its CPU cannot run is refused there, with the reason. DUOLN_CXX names the compiler,
a program or a line such as "ccache g++".
"""


def _compile(args: argparse.Namespace) -> int:
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
