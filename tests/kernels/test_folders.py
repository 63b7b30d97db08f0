"""The page of the kernels has each folder, with the backends that its files are for."""

import importlib
import pkgutil
import re

import duoln.kernels
from duoln.kernels import source

TEXTS = {"native": ".cpp", "cupy": ".cu", "mlx": ".metal"}


def backends(folder):
    """The names of modules with rules that a folder has, or would have if its texts had one each."""
    own = {name for name in ("native", "numpy", "cupy", "mlx") if (folder / f"{name}.py").is_file()}
    if hasattr(importlib.import_module(f"duoln.kernels.{folder.name}"), "attach"):
        own |= {name for name, suffix in TEXTS.items() if list(folder.glob(f"*{suffix}"))}
    return own


def test_the_page_of_the_kernels_has_every_folder_and_its_backends():
    page = (source.FOLDER / "README.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^\| folder \|.*\n\|[ |-]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    rows = {row[1]: row[3:6] for row in (re.split(r" *\| *", line) for line in table.splitlines())}
    folders = [source.FOLDER / each.name for each in pkgutil.iter_modules(duoln.kernels.__path__) if each.ispkg]
    with_rules = [folder for folder in folders if backends(folder)]
    assert sorted(rows) == sorted(f"`{folder.name}`" for folder in with_rules)
    for folder in with_rules:
        cpu, cuda, mlx = rows[f"`{folder.name}`"]
        told = {"native": "compiled" in cpu, "numpy": "NumPy" in cpu, "cupy": cuda != "-", "mlx": mlx != "-"}
        assert {name for name, is_told in told.items() if is_told} == backends(folder), folder.name
