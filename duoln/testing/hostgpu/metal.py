"""The text of a Metal kernel as MLX completes it, for the CPU.

MLX writes the signature: a pointer for each input and output in their order, a reference for a number, `NAME_shape`
where the body names it, inputs of fewer than 8 values in `constant` memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

_SMALL = 8
_TYPES = {"float32": "float", "int32": "int32_t", "bool": "bool", "float16": "float16_t", "uint16": "bfloat16_t"}
"""Metal's types of NumPy's dtypes; the bits of bfloat16 are uint16."""
SHARED = re.compile(r"^(\s*)threadgroup (?=\w+ \w+\[)", re.M)


class Argument(NamedTuple):
    """One argument of a kernel as MLX declares it."""

    declaration: str
    value: np.ndarray
    is_output: bool


def arguments(inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], body: str) -> list[Argument]:
    """The arguments that MLX passes, in its order."""
    parameters = []
    for name, value in inputs.items():
        place = "constant" if value.size < _SMALL else "device"
        mark = "&" if value.ndim == 0 else "*"
        parameters.append(Argument(f"const {place} {_TYPES[value.dtype.name]}{mark} {name}", value, False))
        if value.ndim and f"{name}_shape" in body:
            parameters.append(Argument(f"const constant int* {name}_shape", np.array(value.shape, np.int32), False))
    for name, value in outputs.items():
        parameters.append(Argument(f"device {_TYPES[value.dtype.name]}* {name}", value, True))
    return parameters


def host_text(name: str, given: Sequence[Argument], body: str, header: str) -> str:
    """The same for the CPU: the thread's position is a word of the prelude, and references become pointers."""
    places = [re.sub(r"\b(device|constant) ", "", a.declaration.replace("&", "*")) for a in given]
    numbers = "".join(f"const {_TYPES[a.value.dtype.name]} {a.declaration.split()[-1]} = *number_{i};\n"
                      for i, a in enumerate(given) if a.declaration.count("&"))
    places = [re.sub(r"(\w+)$", f"number_{i}", p) if "&" in a.declaration else p
              for i, (p, a) in enumerate(zip(places, given, strict=True))]
    marked = SHARED.sub(r"\1__shared__ ", body)
    return f'{header}\nextern "C" __global__ void {name}({", ".join(places)}) {{\n{numbers}{marked}\n}}\n'
