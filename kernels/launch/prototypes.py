"""The prototypes that a declaration gives an entry of C++ and of CUDA."""

from __future__ import annotations

from duoln.core.spec import ArraySpec, Spec
from duoln.kernels.launch import declared

_CPP = {"real": "T", "stored": "T", "sum": "T", "bool": "uint8_t", "int32": "int32_t", "int64": "int64_t",
        "float32": "float", "float64": "double"}
_CUDA = {"real": "float", "stored": "storage_t", "sum": "float", "bool": "bool", "int32": "int", "int64": "long long",
         "uint32": "unsigned", "float32": "float", "float64": "double"}


def parameters(spec: Spec) -> list[tuple[str, str]]:
    """The names and kinds of a C++ entry's parameters; the kind of an array's address is ""."""
    kinds = {each.name: each.kind for each in declared.numbers_of(spec)}
    arrays = {each.name for each in (*declared.arrays_of(spec), *spec.outputs)}
    names = declared.parameters(spec) + ([] if "threads" in kinds else ["threads"])
    return [(name, "" if name in arrays else kinds.get(name, "int32" if name == "threads" else "int64"))
            for name in names]


def cpp(entry: str, spec: Spec) -> str:
    """The prototype of a C++ entry: sizes are int64_t, and the number of threads is the last one."""
    listed = _arrays(spec, _CPP, "")
    listed += [f"{_CPP[kind]} {name}" for name, kind in parameters(spec) if kind]
    return f'extern "C" void NAMED({entry})({", ".join(listed)})'


def cuda(entry: str, spec: Spec) -> str:
    """The prototype of a CUDA kernel, but for what stands before its name: sizes are int, and numbers int or float."""
    listed = _arrays(spec, _CUDA, " __restrict__")
    kinds = {each.name: each.kind for each in declared.numbers_of(spec)}
    for name in declared.parameters(spec)[len(listed):]:
        kind = kinds.get(name, "int32")
        listed.append(f"const {name.capitalize()} {name}" if kind == "struct" else
                      f"{'float' if kind[0] == 'f' else 'int'} {name}")
    return f"{entry}({', '.join(listed)})"


def _arrays(spec: Spec, types: dict[str, str], word: str) -> list[str]:
    inputs = {each.name: each for each in spec.inputs}

    def of(array: ArraySpec, is_read: bool) -> str:
        kind = inputs[array.like].kind if array.like else array.kind
        return f"{'const ' if is_read else ''}{types[kind]}*{word} {array.name}"

    return [*(of(each, not each.own) for each in declared.arrays_of(spec)), *(of(each, False) for each in spec.outputs)]
