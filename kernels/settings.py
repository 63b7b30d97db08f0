"""Every CUDA source with all sets of macros in use: the tests compile each of them, and benchmarks time them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import NamedTuple

from duoln.kernels import source
from duoln.kernels.launch import Launch
from duoln.kernels.recurrent import plan as recurrent
from duoln.kernels.recurrent.cells import FUSED
from duoln.kernels.recurrent.cluster_plan import Device, plan

Macros = Mapping[str, int]
Layer = tuple[str, str, int, int]
"""Cell, norm, rows and units."""

ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
"""Turing to Blackwell: the GPUs that duoln's kernels are compiled for in the tests."""

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


def every_setting() -> list[tuple[str, Macros]]:
    """Pairs of a source file and its macros, which the plans of the launches give; those of walks depend on the device,
    see `walks`.
    """
    source.import_all()
    by_file: dict[str, list[Macros]] = {}
    for launch in Launch.every:
        walks = launch.file.rpartition("/")[2].startswith("walk")
        if walks or source.is_outside(launch.file) or not launch.runs_on("cupy"):
            continue
        for file, macros in launch.settings():
            if macros not in by_file.setdefault(file, []):
                by_file[file].append(macros)
    return [(file, macros) for file, every in sorted(by_file.items()) for macros in every]
