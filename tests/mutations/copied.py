"""A copy of the tree in a temporary folder, and pytest run in it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider")


class Copy:
    """The tracked files of the working tree, as they are now, in `folder`."""

    def __init__(self, folder):
        self.folder = folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        shutil.rmtree(folder, ignore_errors=True)
        for name in filter(None, listed.split("\0")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / name).is_file():
                shutil.copyfile(ROOT / name, folder / name)
                shutil.copymode(ROOT / name, folder / name)
        self.site = ROOT / "tests" / "mutations" / "site"
        # Two mutations of one file may have one size and one second: only a hash tells the compiled files apart.
        subprocess.run([sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash",
                        *(name for name in ("duoln", "kernels", "plugins", "examples"))], cwd=folder, check=True)

    def environment(self, **more):
        """For a Python that imports duoln from the copy."""
        inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MUTATIONS_RECORD")}
        return {**inherited, "PYTHONPATH": str(self.site), "MUTATIONS_ROOT": str(self.folder), **more}


class Server:
    """A process that runs pytest in the copy, quickly, as often as it is told to."""

    def __init__(self, copy, **environment):
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("server.py"))], cwd=copy.folder, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=copy.environment(**environment))

    def pytest(self, *words, limit):
        """The exit code of pytest, None after `limit` seconds, and what it printed."""
        self._process.stdin.write(json.dumps({"words": words, "limit": limit}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["code"], answer["output"]

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._process.stdin.close()
        self._process.wait()
