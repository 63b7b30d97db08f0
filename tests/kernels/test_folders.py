"""The page of the kernels has each folder, with the backends that its files are for."""

import re

from duoln.kernels import source


def test_the_page_of_the_kernels_has_every_folder_and_its_backends():
    page = (source.FOLDER / "README.md").read_text(encoding="utf-8")
    [table] = re.findall(r"^\| folder \|.*\n\|[ |-]+\|\n((?:\|.*\n)+)", page, re.MULTILINE)
    rows = {row[1]: row[3:6] for row in (re.split(r" *\| *", line) for line in table.splitlines())}
    with_rules = {path.parent for name in ("native", "numpy", "cupy", "mlx") for path in source.FOLDER.glob(f"*/{name}.py")}
    assert sorted(rows) == sorted(f"`{folder.name}`" for folder in with_rules)
    for folder in with_rules:
        cpu, cuda, mlx = rows[f"`{folder.name}`"]
        told = {"native": "compiled" in cpu, "numpy": "NumPy" in cpu, "cupy": cuda != "-", "mlx": mlx != "-"}
        assert told == {name: (folder / f"{name}.py").is_file() for name in told}, folder.name
