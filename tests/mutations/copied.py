"""A copy of the tree in a temporary folder, and pytest run in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ("-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "no:xdist")


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

    def pytest(self, *words, limit=None, **environment):
        """Run pytest; its exit code and what it printed, or None and "" if it took more than `limit` seconds."""
        inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MUTATIONS_RECORD")}
        process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *words], cwd=self.folder, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**inherited, "PYTHONPATH": str(self.site), "MUTATIONS_ROOT": str(self.folder), **environment})
        try:
            said, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return None, ""
        return process.returncode, said
