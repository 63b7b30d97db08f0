"""Mutate the code at random, one place at a time, and see which tests notice.

    python tests/mutations --seed 7 --count 200 --work /tmp/mutations

The tree is copied to the folder `--work`, where the map from functions to tests is recorded once (minutes; it is kept
for the next call), and each mutant is run against the tests that call the mutated function: quick ones first, then, if
none of them fails, all the others of them, and the tests of whole commands. A run that takes far longer than the
recorded times counts as found: the mutant hangs. A call that was stopped goes on where it was.

With `--limit 60` the map takes about half an hour on two cores, and 200 mutations another half hour to an hour.

`results.jsonl` in the folder has a line for each mutation. `found_by` is the first test that failed, "hangs",
"ends the process" or "breaks"; where it is empty the mutant survives, and `tests` says how many tests were tried. The exit code is 1 if one
survives. A survivor is one of three:

* A test finds it that was not tried: one of a file that `--limit` cut off while the map was made, of a program that a
  test starts, or one too slow to be chosen. Run the test files of the module on the mutant by hand.
* It is equivalent: nothing that the code promises has changed. Often the code says something twice; say it once.
* A test is missing. Write it, and see it fail on the mutant.
"""

import argparse
import json
import random
import sys
from pathlib import Path

from calls import Calls, record
from copied import OPTIONS, ROOT, Copy, Server
from places import mutations

TOPS = ("duoln", "kernels", "plugins")
FEW, MANY = 8, 100
"""Tests of the first attempt, and of the second."""
SECONDS, MANY_SECONDS = 3.0, 20.0
"""How long these tests took when they were recorded, together."""
HANGS = 40, 8
"""A run hangs after so many seconds, and so many times the recorded ones."""


def draw(seed, count, folder):
    """`count` mutations, each as (file, mutation): a line of code at random, then one of the changes to it."""
    chance = random.Random(seed)
    lines = []
    for path in sorted(p for top in TOPS for p in (folder / top).rglob("*.py")):
        at = {}
        for mutation in mutations(path.read_text()):
            at.setdefault(mutation.line, []).append(mutation)
        lines += [(path.relative_to(folder).as_posix(), made) for _, made in sorted(at.items())]
    return [(file, chance.choice(made)) for file, made in chance.sample(lines, count)]


def choose(calls, file, mutation):
    """Tests to run for a mutation, in two parts: a few that are quick, and the others."""
    near = calls.tests(file, mutation.first, mutation.last)
    tests = near + [t for t in calls.tests(file, 0, 10**6) if t not in set(near)][:MANY]
    few, spent = [], 0.0
    for test in tests[:FEW]:
        if few and spent + calls.seconds[test] > SECONDS:
            break
        few.append(test)
        spent += calls.seconds[test]
    others, spent = [], 0.0
    for test in tests[len(few):MANY]:
        if spent + calls.seconds[test] <= MANY_SECONDS:
            others.append(test)
            spent += calls.seconds[test]
    return few, others


def attempt(server, calls, tests):
    """The outcome of a mutant: the test that found it, "hangs", "ends the process", "breaks" (nothing imports), or ""."""
    if not tests:
        return ""
    code, output = server.pytest(*OPTIONS, *tests, limit=HANGS[0] + HANGS[1] * sum(calls.seconds[t] for t in tests))
    if code is None:
        return "hangs"
    if code < 0:
        return "ends the process"
    if code == 0:
        return ""
    failed = [line.removeprefix("FAILED ").removeprefix("ERROR ") for line in output.splitlines()
              if line.startswith(("FAILED ", "ERROR "))]
    if failed or code in (1, 2) or "ImportError while loading conftest" in output or "Error" in output.partition("conftest")[2]:
        return failed[0][:200] if failed else "breaks"
    raise RuntimeError(f"pytest ended with {code}: {output[-2000:]}")


def main():
    """Draw mutations, run the tests, print the outcomes."""
    words = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    words.add_argument("--seed", type=int, default=0)
    words.add_argument("--count", type=int, default=200)
    words.add_argument("--work", type=Path, required=True, help="a folder for the copy, the map and the results")
    words.add_argument("--limit", type=float, default=300.0, help="seconds that a test file may take while the map is made")
    options = words.parse_args()
    copy = Copy(options.work.resolve() / "copy")
    if not (made := options.work / "calls.jsonl").exists():
        record(copy, made, options.limit)
    calls = Calls(made)
    results = options.work / "results.jsonl"
    known = {(e["seed"], e["number"]) for e in map(json.loads, results.read_text().splitlines())} if results.exists() else set()
    server, survivors = Server(copy), 0
    for number, (file, mutation) in enumerate(draw(options.seed, options.count, copy.folder)):
        if (options.seed, number) in known:
            continue
        source = (ROOT / file).read_text()
        (copy.folder / file).write_text(mutation.apply(source))
        try:
            parts = choose(calls, file, mutation)
            found_by = next(filter(None, (attempt(server, calls, part) for part in parts)), "")
        finally:
            (copy.folder / file).write_text(source)
        survivors += not found_by
        line = {"seed": options.seed, "number": number, "place": f"{file}:{mutation.line}", "what": mutation.what,
                "text": mutation.text, "found_by": found_by, "tests": sum(map(len, parts))}
        with results.open("a") as out:
            out.write(json.dumps(line) + "\n")
        print(f"{number + 1:4} {'found   ' if found_by else 'SURVIVES'} {line['place']} {mutation.what}: {mutation.text[:100]}"
              f"  [{found_by[:60]}]", flush=True)
    print(f"{survivors} of {options.count - len(known)} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
