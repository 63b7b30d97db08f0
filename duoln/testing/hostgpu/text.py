"""Changes a kernel's text before the C++ compiler reads it: shared arrays become the machine's, and every entry
point can be called with a list of pointers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from typing import NamedTuple

_KERNEL = re.compile(r'extern\s+"C"\s+__global__\s+void\s+(?:(CLUSTERED)\s+|'
                     r"__launch_bounds__\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)\s*|OF_EIGHT\s+)?"
                     r"(\w+)\s*\(([^)]*)\)")
_MOST_THREADS = 1024
"""The most threads of a block, where a kernel does not say."""
_DYNAMIC = re.compile(r"extern\s+__shared__\s+(?:__align__\(\d+\)\s*)?(\w+)\s+(\w+)\[\s*\]\s*;")
_SHARED = re.compile(r"__shared__\s+(?:__align__\(\d+\)\s*)?"
                     r"((?:const\s+|volatile\s+|unsigned\s+)*\w+(?:<\w+>)?)\s+([^;=()]+);")
_SYSTEM = re.compile(r"^\s*#\s*include\s*<[^>]*>.*$", re.M)


class Parameter(NamedTuple):
    """One parameter of a kernel."""

    kind: str
    """Its C type."""
    name: str
    restrict: bool = False

    @property
    def constant(self) -> bool:
        """True if it points to const."""
        return self.kind.startswith("const ") and self.kind.endswith("*")


class Entry(NamedTuple):
    """One entry point."""

    parameters: list[Parameter]
    most_threads: str
    """The C expression of its launch bounds."""
    cluster: str = "1"
    """That of the blocks of a cluster."""


def entries(text: str) -> dict[str, Entry]:
    """The entry points of a source text."""
    declared = {}
    for clustered, bounds, name, inside in _KERNEL.findall(text):
        parameters = []
        for piece in filter(None, (" ".join(p.split()) for p in inside.split(","))):
            kind, _, last = piece.replace("__restrict__", " ").rpartition(" ")
            stars = last.count("*") + kind.count("*")
            parameters.append(Parameter(" ".join(kind.replace("*", "").split()) + "*" * stars, last.strip("* "),
                                        "__restrict__" in piece))
        most = "THREADS" if clustered else bounds.split(",")[0] or str(_MOST_THREADS)
        declared[name] = Entry(parameters, most, "CLUSTER" if clustered else "1")
    return declared


def host_text(text: str, prelude: str, macros: Mapping[str, object]) -> str:
    """The text for the C++ compiler. Macros follow the prelude, which is compiled once without them."""
    body = _SYSTEM.sub("", text)
    body = _DYNAMIC.sub(r"\1* \2 = static_cast<\1*>(hostgpu::dynamic_shared());", body)
    numbers = count()

    def own(declaration: re.Match[str]) -> str:
        """References to a block's arrays in the place of arrays."""
        kind, pieces = declaration.group(1), []
        for declarator in declaration.group(2).split(","):
            name, bracket, sizes = declarator.strip().partition("[")
            sizes, site = bracket + sizes, f"hostgpu_site_{next(numbers)}"
            pieces.append(f'static hostgpu::Site {site} = {{"{name.strip()}"}}; {kind} (&{name}){sizes} = '
                          f"*static_cast<{kind} (*){sizes}>(hostgpu::shared_array({site}, sizeof({kind}{sizes})));")
        return " ".join(pieces)

    parts = [f'#include "{prelude}"', *(f"#define {name} {value}" for name, value in sorted(macros.items())),
             _SHARED.sub(own, body)]
    for name, entry in entries(text).items():
        values = ", ".join(f"*static_cast<{p.kind}*>(a[{i}])" for i, p in enumerate(entry.parameters))
        parts.append(f'extern "C" void hostgpu_{name}(void** a) {{ {name}({values}); }}\n'
                     f'extern "C" {{ extern const unsigned hostgpu_threads_{name} = {entry.most_threads};\n'
                     f'extern const unsigned hostgpu_cluster_{name} = {entry.cluster}; }}')
    return "\n".join(parts)
