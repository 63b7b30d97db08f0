"""The map from functions to the tests that call them, recorded once."""

import json
import tempfile
from collections import defaultdict
from pathlib import Path

from copied import Server


def record(copy, file, limit):
    """Run each test file in the copy, `limit` seconds at most, with every call traced; write the map to `file`."""
    unfinished = file.with_suffix(".part")
    unfinished.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder, Server(copy, MUTATIONS_RECORD=folder) as server:
        for path in sorted((copy.folder / "tests").rglob("test_*.py")):
            name = path.relative_to(copy.folder).as_posix()
            code, output = server.pytest(name, "-q", "-p", "no:cacheprovider", "-p", "recorder", limit=limit)
            print(f"recorded {name}:", "cut off" if code is None else output.rstrip().rpartition("\n")[2], flush=True)
            with unfinished.open("a") as out:
                for part in sorted(Path(folder).glob("*.jsonl")):
                    out.writelines(line for line in part.read_text().splitlines(keepends=True) if line.endswith("\n"))
                    part.unlink()
    unfinished.rename(file)


class Calls:
    """Which tests call what is between two lines of a file, and how long each test takes."""

    def __init__(self, file):
        self.seconds = {}
        self._by_file = defaultdict(lambda: defaultdict(set))
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            test = entry["test"]
            self.seconds[test] = max(self.seconds.get(test, 0.0), entry["seconds"])
            for name, lines in entry["calls"].items():
                self._by_file[name][test].update(lines)

    def tests(self, name, first, last):
        """Tests that call a function which begins on one of these lines, quick ones first, files in turn."""
        callers = [t for t, lines in self._by_file[name].items() if any(first <= n <= last for n in lines)]
        names = {part for part in Path(name).with_suffix("").parts if part not in ("duoln", "kernels", "plugins")}
        return self._in_turn(callers, names)

    def _in_turn(self, tests, names):
        """The quickest of each file, then the second of each, as tests of one file resemble each other.

        Those of files that are named after the module or its folder come first.
        """
        files = defaultdict(list)
        for test in sorted(tests, key=lambda t: (self.seconds[t], t)):
            files[test.partition("::")[0]].append(test)
        place = {test: (not any(name in Path(file).stem for name in names), k, self.seconds[test])
                 for file, group in files.items() for k, test in enumerate(group)}
        return sorted(place, key=place.__getitem__)
