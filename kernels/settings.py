"""Every CUDA source with all sets of macros in use: the tests compile each of them, and benchmarks time them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import duoln.kernels
from duoln.kernels import source
from duoln.kernels.launch import Launch
from duoln.kernels.recurrent import plan as recurrent
from duoln.kernels.recurrent.cells import FUSED
from duoln.kernels.recurrent.cluster_plan import Device, plan
from duoln.ops.recurrent.variants import CELLS

Macros = Mapping[str, int]
Layer = tuple[str, str, int, int]
"""Cell, norm, rows and units."""

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""Turing to Blackwell: the GPUs that duoln's kernels are compiled for in the tests."""

STORED: tuple[dict[str, int], ...] = ({}, {"STORAGE": 1}, {"STORAGE": 2})
"""The macros of each dtype of a kernel that takes 16 bits: its STORAGE number, see storage.cuh."""
TENSORS = {"CHUNK": 4096, "MOST": 56}
"""The macros of kernels that read all tensors of a model."""
ADAM = {**TENSORS, "ROLES": 7}
NORM = {**TENSORS, "ROLES": 1}
PUSHES = tuple({"CLUSTER": 16, "THREADS": 256, "WIDTH": width} for width in (4, 8, 16, 1024))
"""Bytes of a push, in the largest clusters; the last is one copy for each block."""


def _stored(every: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    """These macros for values stored in each way."""
    return [{**macros, **storage} for storage in STORED for macros in every]


WALK_DEVICES = {"sm_90": Device.of(9, 132, 227 << 10), "sm_100": Device.of(10, 148, 227 << 10),
                "sm_120": Device.of(12, 170, 99 << 10)}
"""A device of each architecture that has clusters of blocks."""
WALK_SIZES = ((8, 400), (128, 256), (32, 240), (3, 33), (64, 512))
"""Rows and units of walks: handwriting, DRAW, the attentive reader, a small layer and a large one."""


class Walk(NamedTuple):
    """The source of a walk with its setting."""

    file: str
    macros: Macros
    shared: int
    """Bytes of shared memory for which it asks at its launch."""


def every_layer(sizes: Iterable[tuple[int, int]]) -> list[Layer]:
    """Every cell and norm, with each of these rows and units."""
    return [(cell, norm, batch, hidden) for (cell, norm), (batch, hidden) in product(FUSED, sizes)]


def walks(device: Device, layers: Iterable[Layer] | None = None) -> list[Walk]:
    """The walks of some layers on a device, each once; by default of every layer of WALK_SIZES."""
    made: list[Walk] = []
    for cell, norm, batch, hidden in every_layer(WALK_SIZES) if layers is None else layers:
        norms = recurrent.norm_macros(cell, norm)
        for direction, file in (("forward", "walk.cu"), ("backward", "walk_backward.cu")):
            chosen = plan(cell, norm, direction, hidden, batch, device)
            walk = chosen and Walk(f"recurrent/{cell}/{file}", chosen.macros(**norms), chosen.shared)
            if walk and walk not in made:
                made.append(walk)
    return made


def _of_launches() -> dict[str, list[Macros]]:
    """Those of the launches that are declared in the folders' own files, which their plans give."""
    for folder in pkgutil.iter_modules(duoln.kernels.__path__):
        if folder.ispkg:
            importlib.import_module(f"duoln.kernels.{folder.name}")
    by_file: dict[str, list[Macros]] = {}
    for launch in Launch.every:
        for file, macros in launch.settings() if launch.runs_on("cupy") else ():
            if macros not in by_file.setdefault(file, []):
                by_file[file].append(macros)
    return by_file


def every_setting() -> list[tuple[str, Macros]]:
    """Pairs of a source file and its macros. A text without macros of its own is compiled once, or once for each way in
    which it stores values; those of walks depend on the device, see `walks`.
    """
    with_macros: dict[str, Sequence[Macros]] = {
        **{file: _stored(every) for file, every in recurrent.every_setting().items()},
        "adam/adam.cu": [ADAM],
        "global_norm/global_norm.cu": [NORM],
        "recurrent/row_statistics.cu": [{**m, "CELL_GATES": gates} for gates in (cell.gates for cell in CELLS.values())
                                        for m in recurrent.every_plan([{}])],
        "device_limits/push.cu": list(PUSHES), **_of_launches()}
    files = [path for path in sorted(source.FOLDER.rglob("*.cu")) if not path.name.startswith("walk")]
    return [(file, macros) for file, path in ((path.relative_to(source.FOLDER).as_posix(), path) for path in files)
            for macros in with_macros.get(file) or (STORED if "storage_t" in path.read_text("utf-8") else STORED[:1])]
