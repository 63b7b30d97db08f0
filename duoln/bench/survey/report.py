"""The summary of a survey's folder for people, `summary.md`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duoln.bench import text
from duoln.bench.survey.folder import NOT_THERE, SUMMARY, Folder
from duoln.system.filesystem import write_atomically


def write_summary(folder: Folder) -> None:
    """Write the results so far, as Markdown, from the records that are there."""
    write_atomically(folder.path / SUMMARY, summary(folder).encode())


def summary(folder: Folder) -> str:
    """The results so far, as Markdown."""
    lines = ["# Survey of one device", "", *_facts(folder), "",
             "| part | what | seconds | |", "| --- | --- | --- | --- |"]
    lines += [f"| {o.name} | {o.what} | {o.seconds:.0f} | {o.state} |" for o in folder.outcomes]
    for outcome in folder.outcomes:
        record = folder.record(outcome.name)
        if not (outcome.problem or record):
            continue
        lines += ["", f"## {outcome.name}"]
        if outcome.problem:
            lines += ["", outcome.problem] if outcome.state == NOT_THERE else ["", "```", outcome.problem, "```"]
        if record:
            lines += ["", *_figures(record)]
    return "\n".join(lines) + "\n"


def _facts(folder: Folder) -> list[str]:
    known = {**_first(folder, "backend"), **_first(folder, "host")}
    commit = (folder.about["git"] or {}).get("sha", "not known")
    return [f"{folder.about['started']}, commit {commit}", "", *(f"* {key}: {value}" for key, value in known.items())]


def _first(folder: Folder, key: str) -> dict[str, Any]:
    """What the first record that has such facts says."""
    entries = (folder.record(outcome.name).get(key) for outcome in folder.outcomes)
    return next((facts for facts in entries if isinstance(facts, dict)), {})


def _figures(content: Mapping[str, Any]) -> list[str]:
    if "rules" in content:
        return _of_rules(content)
    if "cases" in content:
        return [*(_case(c) for c in content["cases"]),
                *(f"* did not run: {what}: {why}" for what, why in content.get("missing", {}).items())]
    if "tools" in content:
        return [f"* {tool}: {outcome['result']}" for tool, outcome in content["tools"].items()]
    return [f"* {key}: {_plain(value)}" for key, value in content.get("figures", content).items()]


def _of_rules(content: Mapping[str, Any]) -> list[str]:
    lines = []
    compiled = content.get("compilation")
    if compiled:
        lines += [f"* compiled: {compiled['settings']} settings by {compiled['processes']} processes in "
                  f"{compiled['seconds']:.0f} s, without those that CuPy's cache on the disk had; "
                  f"{compiled['processor seconds']:.0f} s of work, the slowest {compiled['slowest seconds']:.1f} s "
                  f"({compiled['slowest']})",
                  *(f"* did not compile: {line}" for line in compiled["failures"])]
    lines += [f"* {name}: {words}" for name, words in content["lines"].items()]
    lines += [f"* {r['op']}, {r['rule']}: {r['cases']} cases, error {r['error']:.2g} of what is allowed, "
              f"{'repeats' if r['repeats'] else 'DOES NOT REPEAT'}, {len(r['failures'])} failed"
              for r in content["rules"]]
    lines += [f"* near: {line}" for r in content["rules"] for line in r["near"]]
    lines += [_failed(line) for line in (*content["failures"], *(f for r in content["rules"] for f in r["failures"]))]
    if content["running"]:
        lines.append(f"* stopped while it tried: {', '.join(content['running'])}")
    return [*lines, f"* left out: {content['left out']} of {content['expected']}"] if content["left out"] else lines


def _failed(line: str) -> str:
    """Its first line; what follows, such as a compiler's log, as it was written."""
    first, _, rest = line.partition("\n")
    return f"* failed: {first}" + (f"\n\n```\n{rest}\n```\n" if rest else "")


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_plain(entry)}" for key, entry in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _case(case: Mapping[str, Any]) -> str:
    ours = case.get("ratio")
    more = [f"{text.duration(case['event_seconds'])} on the device"] if "event_seconds" in case else []
    more += [] if case.get("fraction_of_copy") is None else [f"{case['fraction_of_copy']:.0%} of a copy"]
    more += [f"first side / this one {ours:.2f}"] if ours is not None and ours != 1 else []
    return ", ".join([f"* {case['op']} {case['pass']} {case['shape']} {case['cache']} {case['side']}: "
                      f"{case['median'] * 1e6:.1f} us", *more])
