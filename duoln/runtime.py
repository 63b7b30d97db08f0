"""The choice of a backend, and the registration of its fused rules."""

from __future__ import annotations

import copy
import importlib
import os
import pkgutil
import platform
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import duoln.kernels
from duoln import backends, tree
from duoln.backends.protocol import DTYPES, Backend
from duoln.core import Tensor
from duoln.core.arguments import described, did_you_mean, kind_name
from duoln.core.entering import host_array
from duoln.core.pytorch_names import hinted
from duoln.core.tensor import constant_tensor
from duoln.data.batches import check_pair, check_range
from duoln.errors import BackendError, DtypeError, GradientError, UsageError
from duoln.kernels import host, native, proofs
from duoln.nn.module import Module
from duoln.randomness import Stream
from duoln.system import variables

CHOICES = ("auto", *backends.NAMES)

REMEDIES = {
    "numpy": "pip install numpy",
    "cupy": 'on a machine with an NVIDIA driver: pip install "cupy-cuda12x[ctk]>=14.1" (CUDA 13: cupy-cuda13x)',
    "mlx": 'on Apple silicon: pip install "mlx>=0.32" (on Linux, for tests only: pip install "mlx[cpu]>=0.32")',
}


class Probe(NamedTuple):
    """The result of a trial of one backend."""

    name: str
    backend: Backend | None
    reason: str
    """The reason why it cannot be used, or why auto would not choose it; empty if there is no such reason."""


_attached: set[str] = set()
_of_packages: list[tuple[Callable[[str], None], set[str]]] = []
"""Functions that add rules of other packages, each with the backends for which they have been called."""


def when_used(attach: Callable[[str], None]) -> None:
    """Call `attach` with the name of each backend when that is first used, and now for those in use."""
    _of_packages.append((attach, set()))
    for name in sorted(_attached):
        attach_packages(name)


def attach_packages(name: str) -> None:
    """Add the rules of other packages for a backend of this name."""
    for attach, done in _of_packages:
        if name not in done:
            done.add(name)
            attach(name)


def probe(name: str) -> Probe:
    """Try one backend by running a kernel on it.

    An installed package is not enough: CuPy imports without a GPU, and MLX's package raises ImportError without its
    library. So every exception is caught here and kept as the reason.
    """
    try:
        loaded = backends.load(name)
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:  # SystemExit, and what extensions in other languages raise
        text = str(error).strip().splitlines()
        return Probe(name, None, f"{type(error).__name__}: {text[0] if text else 'no message'}")
    _attach(loaded)
    on_cpu = name == "mlx" and not getattr(loaded, "on_gpu", True)
    return Probe(name, loaded, "no Metal GPU; on a CPU numpy is many times faster" if on_cpu else "")


@hinted
def backend(name: str | None = None) -> Backend:
    """The backend of that name; for None or "auto" this function chooses one.

    The choice is DUOLN_BACKEND, then CuPy if a CUDA device runs a kernel, then MLX if it has a GPU, then NumPy.

    Raises:
        UsageError: there is no backend of that name. DtypeError: it is not a name.
        BackendError: the requested backend cannot be used here; the message gives the reason and a remedy.
    """
    return _choose(name)[0]


def choose(name: str | None = None) -> tuple[Backend, str]:
    """The choice of `backend`, and a description such as `numpy, compiled by g++ 12, AVX-512` or `cupy, NVIDIA H100`.

    `duoln doctor` has the rest.
    """
    chosen = _choose(name)[0]
    return chosen, f"{chosen.name}, {_rules() if chosen.name == 'numpy' else chosen.device}"


def choice_in_full() -> str:
    """A description of the default backend, of the reason for that choice, and of its rules."""
    chosen, why = _choose(None)
    return f"{why}; {native.summary()}" if chosen.name == "numpy" else why


def _rules() -> str:
    """The compiler and the vectors of NumPy's rules; or the reason why they are interpreted, with its remedy."""
    known = native.facts()
    if known["rules"] == "interpreted":
        return native.summary()
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    vectors = _VECTORS.get(known["vector_bits"]) if is_x86 else None
    absent = f", {len(known['absent'])} of the rules interpreted: duoln doctor says why" if known["absent"] else ""
    return (f"compiled by {_short(known['compiler'])}, {vectors or 'vectors of ' + known['vector_bits'] + ' bits'}"
            f"{absent}")


_VECTORS = {"512": "AVX-512", "256": "AVX", "128": "SSE"}
"""The vectors of x86, by their bits."""


def _short(version: str) -> str:
    """The name of a compiler and the first part of its version, from the first line of its `--version`."""
    match = re.match(r"(.*?)(?: version)? +v?(\d+)\.\d", re.sub(r"\([^)]*\)", "", version))
    return f"{' '.join(match[1].split())} {match[2]}" if match else version


def _choose(name: str | None) -> tuple[Backend, str]:
    asked_by = "asked for"
    if name is None and os.environ.get("DUOLN_BACKEND"):
        name, asked_by = os.environ["DUOLN_BACKEND"], "set by DUOLN_BACKEND"
    name = "auto" if name is None else name
    if not isinstance(name, str):
        raise DtypeError(f"[backend] expected the name of a backend, one of {', '.join(CHOICES)}; found "
                         f"{described(name)}")
    if name not in CHOICES:
        advice = f"; a dtype goes by name, dtype={name!r}" if name in DTYPES else did_you_mean(name, CHOICES)
        raise UsageError(f"[backend] expected one of {', '.join(CHOICES)}; found {name!r}{advice}")
    if name == "auto":
        refused = []
        for name_tried in ("cupy", "mlx"):
            tried = probe(name_tried)
            if tried.backend is not None and not tried.reason:
                return tried.backend, f"{name_tried} on {tried.backend.device}: it ran a kernel"
            refused.append(f"no {name_tried} ({tried.reason})")
        name, asked_by = "numpy", "; ".join(refused)
    tried = probe(name)
    if tried.backend is None:
        raise BackendError(f"[backend] {name} ({asked_by}) cannot be used here: {tried.reason}\n"
                           f"  try: {REMEDIES[name]}")
    return tried.backend, f"{name} on {tried.backend.device}: {asked_by}"


@hinted
def tensor(x: Any, backend: Backend | str | None = None, dtype: str | None = None,
           within: tuple[int, int] | None = None) -> Tensor:
    """A tensor with the values of a NumPy array, nested lists, a number, or a tensor of any backend.

    The tensor has memory of its own; `from_dlpack` shares that of another library's array. A CuPy array or a tensor of
    PyTorch or JAX on a CUDA device is copied there, if the backend is CuPy's.

    Python floats and lists of them become float32. Integers of any kind, also in arrays, become int32. Bools stay
    bool. Tensors and arrays of floats keep their dtype, if the backend has it: NumPy's arrays and scalars, and all that
    NumPy reads as arrays, such as PyTorch's tensors, `array.array` and memoryviews. With `dtype`, floats are rounded to
    it; "float16" and "bfloat16" store values in 16 bits, and arithmetic with them is float32. No other conversion
    changes a value: a value that the dtype cannot hold raises an error.

    Args:
        x: the values.
        backend: the backend of the tensor; by default the one that `backend()` chooses.
        dtype: a dtype that the backend has.
        within: for indices and labels, `(low, stop)`: every value must be at least `low` and below `stop`. Devices do
            not check indices, so wrong ones are detected here, or give NaN.

    Raises:
        DtypeError: the backend does not have the dtype, or the dtype cannot hold a value.
        ShapeError: lists have different lengths. DataError: a value is not within the range.
        GradientError: PyTorch or MLX needs a gradient of the array, of which the tensor would be a constant.
    """
    if isinstance(x, Module):
        raise DtypeError(f"[tensor] expected numbers on the host, found {described(x)}; duoln.init(model, seed) "
                         "gives a module's parameters")
    where = backend_of("tensor", backend)
    _refuse_traced("tensor", x)
    if not isinstance(x, Tensor) and _device_type(x) == _CUDA:
        shared = from_dlpack(x, where)
        return copy.deepcopy(shared) if dtype in (None, shared.dtype) else shared.astype(dtype)
    host, dtype = host_array(x, where, dtype)
    if within is not None:
        low, stop = check_pair("tensor", "within", within)
        check_range("tensor", host, stop, low)
    return constant_tensor(where.asarray(host, dtype), where)


@hinted
def from_dlpack(x: Any, backend: Backend | str | None = None) -> Tensor:
    """A tensor that shares the memory of another library's array: of NumPy, PyTorch, CuPy, MLX, JAX or another.

    duoln does not write into that memory. What its owner writes there changes the tensor, and with it the gradient of
    what was computed from it before; `duoln.tensor` copies. MLX copies arrays of the host that it cannot share. On a
    CUDA device the current stream waits for what the owner has queued.

    Args:
        x: an array with `__dlpack__` and `__dlpack_device__`, of any layout.
        backend: by default the one whose device has the array: NumPy's, CuPy's or, for Metal, MLX's.

    Raises:
        DtypeError: the array exports nothing, or has a dtype that the backend has not; the message says what copies it.
        BackendError: as `duoln.backend`, for the backend of the array's device.
        GradientError: PyTorch or MLX needs a gradient of the array.
    """
    _refuse_traced("from_dlpack", x)
    device = _device_type(x)
    if device not in _ON_DEVICE:
        raise DtypeError(f"[from_dlpack] expected an array on the host, a CUDA device or Metal with __dlpack__, found "
                         f"{described(x)}; duoln.tensor(x) takes lists and numbers")
    where = backend_of("from_dlpack", _ON_DEVICE[device] if backend is None else backend)
    if (device == _CUDA) is not (where.name == "cupy"):
        has = "on a CUDA device; copy it: x.cpu() in PyTorch, x.get() in CuPy" if device == _CUDA else \
            "on the host; duoln.tensor(x, backend) copies it"
        raise DtypeError(f"[from_dlpack] expected an array on the device of {where.name}, found {described(x)} {has}")
    try:
        native = where.shared(x)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise DtypeError(f"[from_dlpack] expected an array that {where.name} can share, found {described(x)}: {error}; "
                         "convert it there, such as x.detach().float() in PyTorch") from error
    dtype = str(native.dtype).removeprefix("mlx.core.")
    if dtype not in where.dtypes:  # bits of NumPy's uint16 would be read as bfloat16
        raise DtypeError(f"[from_dlpack] expected one of {', '.join(where.dtypes)} on {where.name}, found {dtype}; "
                         "duoln.tensor(x, dtype=...) converts a copy")
    return constant_tensor(native, where)


def _refuse_traced(name: str, x: Any) -> None:
    """Raises GradientError for an array that PyTorch or MLX traces, also in a list: the tensor would be a constant."""
    if isinstance(x, list | tuple):
        if any(library in sys.modules for library in _IS_TRACED):
            for value in x:
                _refuse_traced(name, value)
        return
    library = type(x).__module__.partition(".")[0]
    if library in _IS_TRACED and _IS_TRACED[library](x):
        raise GradientError(f"[{name}] expected constants, found {described(x)} whose gradient would be lost; make it "
                            f"an argument of the function that duoln.bridge.{library} differentiates. Where a constant "
                            f"is meant, give {_CONSTANT[library]}")


def _is_traced_by_torch(x: Any) -> bool:
    torch = sys.modules["torch"]
    return isinstance(x, torch.Tensor) and bool(
        (x.requires_grad and torch.is_grad_enabled()) or torch._C._functorch.is_functorch_wrapped_tensor(x)
        or torch.autograd.forward_ad.unpack_dual(x).tangent is not None or kind_name(type(x)) == "torch.FakeTensor")


def _is_traced_by_mlx(x: Any) -> bool:
    from duoln.backends import mlx  # loads MLX, which has made x

    return mlx.is_traced(x)


_IS_TRACED = {"torch": _is_traced_by_torch, "mlx": _is_traced_by_mlx}
_CONSTANT = {"torch": "x.detach()", "mlx": "numpy.array(x)"}


_CUDA = 2
_ON_DEVICE = {1: "numpy", _CUDA: "cupy", 8: "mlx"}
"""The backend for each type of device, by DLPack's numbers: the host, CUDA and Metal."""


def _device_type(x: Any) -> int | None:
    """The type of the device of an array that has `__dlpack__`, else None."""
    device = getattr(x, "__dlpack_device__", None)
    try:
        return None if device is None or isinstance(x, type) else int(device()[0])
    except ValueError:  # PyTorch's meta and MPS tensors have the method, and no device of DLPack
        return None


def backend_of(name: str, given: Backend | str | None) -> Backend:
    """The backend that an argument of the function `name` stands for; None is the one that `backend()` chooses.

    Raises:
        DtypeError: it is neither a backend nor the name of one. The rest as `backend`.
    """
    if given is None or isinstance(given, str):
        return _choose(given)[0]
    if not hasattr(given, "asarray") or not hasattr(given, "free_memory"):
        raise DtypeError(f"[{name}] backend: expected a backend or its name, found {described(given)}")
    return given


@hinted
def to_tensors(values: Any, backend: Backend | str | None = None, dtype: str | None = None) -> Any:
    """`tensor` at every leaf of a tree."""
    where = backend_of("to_tensors", backend)
    return tree.map(lambda x: tensor(x, where, dtype), values)


@hinted
def init(model: Module, seed: int | Stream, backend: Backend | str | None = None, dtype: str | None = None) -> Any:
    """The initial parameters of a model, as tensors: `model.init(seed)`, which gives NumPy arrays, on a backend.

        >>> params = duoln.init(nn.Linear(4, 3), seed=0)
        >>> params["weight"].shape
        (4, 3)

    Raises:
        DtypeError: it is no module, or the seed is neither an integer nor a stream. The rest as `Module.init`.
    """
    if not isinstance(model, Module):
        raise DtypeError(f"[init] model: expected a module, found {described(model)}")
    return to_tensors(model.init(seed), backend, dtype)


def kernel_folders() -> list[Path]:
    """The folders with the code and the texts of the kernels."""
    return [Path(folder) for folder in duoln.kernels.__path__]


def native_facts() -> dict[str, Any]:
    """Facts about the compilation of NumPy's rules here: the compiler, or the reason why not and a remedy."""
    return native.facts()


def foresee(where: Backend, function: Callable[..., Any]) -> None:
    """Begin to compile the kernels of the NumPy backend that a function will need, beside the program."""
    if where.name == "numpy":
        native.foresee(function)


def compile_kernels(march: str, out: Path | None = None) -> dict[str, Any]:
    """Compile the kernels of the NumPy backend ahead, for a machine that need not have a compiler.

    Args:
        march: the CPU, a value of the compiler's -march; "native" is this machine's.
        out: the folder, which DUOLN_KERNELS names on that machine; by default where this machine keeps its own.

    Raises:
        UsageError: the compiler knows no such CPU.
        KernelError: there is no compiler, the folder cannot be written, or a kernel does not compile.
    """
    return native.compile_ahead(march, out)


_MODULES = {"numpy": ("numpy", "cpu")}
"""The names of modules with rules, for a backend that has several; the rules of later ones are tried first."""


def _attach(loaded: Backend) -> None:
    """Import `kernels/*/NAME.py` for this backend, and each folder; they add their rules to the operators."""
    if loaded.name in _attached:
        return
    variables.check_switches()
    if loaded.name == "numpy":
        host.workers()  # a wrong DUOLN_THREADS is told before a rule needs it
    for folder in sorted(m.name for m in pkgutil.iter_modules(duoln.kernels.__path__) if m.ispkg):
        package = importlib.import_module(f"duoln.kernels.{folder}")
        modules = {m.name for m in pkgutil.iter_modules(package.__path__)}
        for module in _MODULES.get(loaded.name, (loaded.name,)):
            if module in modules:
                attach: Callable[[], None] = importlib.import_module(f"duoln.kernels.{folder}.{module}").attach
                attach()
        if hasattr(package, "attach"):  # one file for all devices
            package.attach(loaded.name)
    if loaded.name == "cupy" or getattr(loaded, "on_gpu", False):
        loaded.proofs = proofs.Proofs(loaded)
    _attached.add(loaded.name)
    attach_packages(loaded.name)
