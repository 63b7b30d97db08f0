"""Files in safetensors, with or without notes in JSON. A reader limits the header and has one class of error for what
is wrong. A writer refuses what a reader would refuse.

Arrays of bfloat16, which NumPy has not, are tensors of the NumPy backend; all others are NumPy arrays.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from duoln import tree
from duoln.core import Tensor
from duoln.core.arguments import described
from duoln.core.entering import refuse_masked
from duoln.data import json_text
from duoln.data.bounded import CONTENT_ERRORS, opened
from duoln.errors import CheckpointError, DataError, DtypeError, MemoryExhaustedError, ShapeError, UsageError
from duoln.runtime import backend, tensor
from duoln.system.paths import in_home

Array = np.ndarray | Tensor
NOTES = "duoln"
"""The key of the file's metadata under which the notes are, behind a checksum of them and one of the arrays."""
_SEALED = re.compile(r'\{"crc32": "([0-9a-f]{8}) ([0-9a-f]{8})", "notes": (.*)\}', re.DOTALL)
_MAX_HEADER = 1 << 24
"""The most bytes of a header; each array takes some 100. The safetensors library accepts 100 million."""
_DTYPES = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
           "bool")
_RESERVED = "__metadata__"
"""The name under which a header has its metadata."""
_NARROW = "BF16"
_OTHER_FORMATS = (".npz", ".npy", ".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle", ".h5", ".json")
"""The ends of the names of other libraries' files of parameters."""
_PICKLES = tuple(bytes((0x80, version)) for version in range(2, 6))
_HEAD = 1 << 8
_COPIES = 2
"""The number of copies of the content that the library holds while it writes."""


def path_of(name: str, path: Any) -> Path:
    """A path that a caller gave. Raises DtypeError for anything else, such as the parameters."""
    if not isinstance(path, str | PathLike):
        raise DtypeError(f"[{name}] path: expected the name of a file or folder first, found {described(path)}")
    return in_home(path)


def check_name(name: str, path: Path) -> None:
    """Raises UsageError for a path that ends as a file of another format does."""
    if path.suffix.lower() in _OTHER_FORMATS:
        raise UsageError(f"[{name}] path: expected a name for a file in safetensors, such as "
                         f"{path.with_suffix('.safetensors').name!r}, found {path.name!r}")


def by_path(name: str, arrays: Any) -> dict[str, Any]:
    """The leaves of a tree by their paths.

    Raises:
        ShapeError: two have one path, as in {"a.b": x, "a": {"b": y}}.
    """
    flat: dict[str, Any] = {}
    for path, leaf in tree.items(arrays):
        if path in flat:
            raise ShapeError(f"[{name}] expected one array for each path, found {path!r} twice")
        flat[path] = leaf
    return flat


def checked_array(name: str, path: str, leaf: Any) -> Array:
    """A leaf of a tree that can be written.

    Raises:
        DtypeError: it is no tensor and no array of numbers or bools, or has masked values.
    """
    if not isinstance(leaf, Tensor | np.ndarray | np.generic):
        raise DtypeError(f"[{name}] {path!r}: expected a tensor or an array, found {described(leaf)}; parameters are "
                         "what model.init(0) makes")
    if isinstance(leaf, Tensor):
        return leaf
    refuse_masked(name, leaf)
    array = np.asarray(leaf)
    if array.dtype.name not in _DTYPES:
        raise DtypeError(f"[{name}] {path!r}: expected numbers or bools, found {array.dtype}")
    return array


def in_bytes(name: str, arrays: Mapping[str, Array], notes: Mapping[str, Any]) -> bytes:
    """The content of a file with these arrays by name, and notes that JSON can hold.

    Raises:
        ShapeError: a reader would refuse the notes. The rest as `in_foreign_bytes`.
    """
    text = json_text.dumps(dict(notes))
    try:
        json_text.parse_json(text.encode())
    except ValueError as error:
        raise ShapeError(f"[{name}] expected a tree that can be read again, found one that is {error}") from error
    on_host = {key: tensor(x, "numpy") if isinstance(x, Tensor) and x.dtype == "bfloat16" else _on_host(x, False)
               for key, x in arrays.items()}
    return in_foreign_bytes(name, on_host, {NOTES: sealed(text, on_host)})


def in_foreign_bytes(name: str, arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> bytes:
    """The content of a file for other libraries: these arrays by name, and texts by name.

    Raises:
        DtypeError: a name that the format does not take. ShapeError: a header larger than a reader takes.
        GradientError: a tensor is part of a gradient that is still being computed.
        MemoryExhaustedError: the content, which is held twice for a moment, does not fit into the memory.
    """
    import safetensors.numpy  # imported here and below, because only saving and loading need the package

    if _RESERVED in arrays:
        raise DtypeError(f"[{name}] expected another name than {_RESERVED!r}, which the format reserves")
    narrow = {key for key, x in arrays.items() if isinstance(x, Tensor) and x.dtype == "bfloat16"}
    host = {key: _on_host(x, key in narrow) for key, x in arrays.items()}
    try:
        _check_memory(_COPIES * sum(x.nbytes for x in host.values()))
        content = safetensors.numpy.save(host, dict(metadata))
    except MemoryError as error:
        raise MemoryExhaustedError(f"[{name}] no memory left for the content of the file: {error}") from error
    except UnicodeEncodeError as error:
        raise DtypeError(f"[{name}] expected names in Unicode, found {error.object!r:.60}") from error
    begin = 8 + int.from_bytes(content[:8], "little")
    if narrow:
        # The library takes no bfloat16 from NumPy: it gets the bits, and the header names their dtype.
        header = json.loads(content[8:begin])
        for key in narrow:
            header[key]["dtype"] = _NARROW
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        content, begin = b"".join((len(text).to_bytes(8, "little"), text, content[begin:])), 8 + len(text)
    if begin - 8 > _MAX_HEADER:
        raise ShapeError(f"[{name}] expected names and notes that fit a header of {_MAX_HEADER} bytes, found "
                         f"{len(arrays)} arrays with a header of {begin - 8}")
    return content


def _check_memory(count: int) -> None:
    """Raises MemoryError if the system does not give so many bytes. The library asks for them in Rust, which ends the
    process then.
    """
    np.empty(count, np.uint8)


def sealed(notes: str, arrays: Mapping[str, Array]) -> str:
    """Notes in JSON as a file has them: behind the checksums of themselves and of arrays on the host."""
    return f'{{"crc32": "{_sum(notes)} {_sum_of(arrays)}", "notes": {notes}}}'


def _sum(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _sum_of(arrays: Mapping[str, Array]) -> str:
    """The checksum of arrays on the host: of their names, shapes and bytes."""
    total = 0
    for name in sorted(arrays):
        x = arrays[name]
        values: np.ndarray = x.data if isinstance(x, Tensor) else x
        # What is no Unicode is refused when the file is made.
        total = zlib.crc32(f"{name} {values.dtype} {values.shape}".encode(errors="surrogatepass"), total)
        total = zlib.crc32(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data, total)
    return f"{total:08x}"


def _on_host(x: Array, is_narrow: bool) -> np.ndarray:
    if is_narrow:
        x = tensor(x, "numpy").data  # that backend has the bits, as uint16
    values = x.numpy() if isinstance(x, Tensor) else np.asarray(x)
    return np.asarray(values, values.dtype.newbyteorder("="), order="C")


class TensorFile:
    """An open file in safetensors; the library has checked its header."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path, self._file = path, file
        self.names: frozenset[str] = frozenset(file.keys())
        self.metadata: dict[str, str] = file.metadata() or {}

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of an array."""
        return tuple(self._file.get_slice(name).get_shape())

    def dtype(self, name: str) -> str:
        """The dtype of an array, as the format writes it: F32, BF16, I64."""
        return str(self._file.get_slice(name).get_dtype())

    def array(self, name: str) -> Array:
        """An array; one of bfloat16 as a tensor of the NumPy backend."""
        data, header = self._header
        begin, end = header[name]["data_offsets"]
        if self.dtype(name) != _NARROW:
            _check_memory(end - begin)
            values: np.ndarray = self._file.get_tensor(name)
            return values
        shape = self.shape(name)
        bits = np.fromfile(self._path, "<u2", int(np.prod(shape, dtype=np.int64)), offset=data + begin)
        return Tensor(bits.reshape(shape).astype(np.uint16), backend("numpy"))

    def notes(self) -> Any:
        """The notes.

        Raises:
            CheckpointError: they are not those that were written.
        """
        written, _, text = self._sealed
        self._check("notes", written, _sum(text))
        return json_text.revive(json_text.parse_json(text.encode()))

    def arrays(self) -> dict[str, Array]:
        """All arrays by name.

        Raises:
            CheckpointError: they are not those that were written.
        """
        arrays = {name: self.array(name) for name in self.names}
        self._check("arrays", self._sealed[1], _sum_of(arrays))
        return arrays

    @property
    def _sealed(self) -> tuple[str, str, str]:
        """The checksums of the notes and of the arrays, and the notes."""
        if NOTES not in self.metadata:
            raise CheckpointError(f"{self._path}: expected a file of duoln, found one of another program; "
                                  "duoln.load_pytorch(path, model) reads a state dict of PyTorch")
        parts = _SEALED.fullmatch(self.metadata[NOTES])
        if parts is None:
            raise ValueError("expected notes behind their checksums, found none")
        return parts[1], parts[2], parts[3]

    def _check(self, what: str, written: str, read: str) -> None:
        if written != read:
            raise CheckpointError(f"{self._path}: expected the {what} that were written, with checksum {written}, "
                                  f"found {read}: the file was damaged on the disk, or changed")

    @cached_property
    def _header(self) -> tuple[int, Any]:
        """The offset at which the data begins, and the header."""
        with open(self._path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            return 8 + size, json_text.parse_json(file.read(size))


@contextmanager
def opened_tensors(path: Path, kind: str) -> Iterator[tuple[TensorFile, Any]]:
    """Open a file and read its notes; every error that they cause in the block is a CheckpointError.

    The arguments and errors are those of `opened_foreign`.
    """
    with opened_foreign(path, kind) as file:
        yield file, file.notes()


@contextmanager
def opened_foreign(path: Path, kind: str) -> Iterator[TensorFile]:
    """Open a file without notes; every error that it causes in the block is a CheckpointError.

    Args:
        path: the file.
        kind: what it has to be, for errors, such as "a duoln checkpoint".

    Raises:
        CheckpointError: it is not there, damaged, of another kind, or does not fit into the memory.
    """
    import safetensors

    _check_header(path, kind)
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            yield TensorFile(path, file)
    except MemoryError as error:
        raise CheckpointError(f"{path}: does not fit into the memory ({path.stat().st_size} bytes)") from error
    except (safetensors.SafetensorError, OSError, *CONTENT_ERRORS, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: not {kind}: {type(error).__name__}: {error!s:.200}") from error


def _check_header(path: Path, kind: str) -> None:
    """Raises CheckpointError for anything but a regular file, for a file of PyTorch or NumPy, or for a header that
    claims too many bytes.
    """
    try:
        with opened(path, kind.rpartition(" ")[2]) as file:
            head = file.read(_HEAD)
    except DataError as error:
        raise CheckpointError(str(error)) from error
    size = int.from_bytes(head[:8], "little")
    if size > _MAX_HEADER:
        raise CheckpointError(f"{path}: not {kind}: expected a header of at most {_MAX_HEADER} bytes, found "
                              f"{_other_format(path, head) or f'a claim of {size}'}")


def _other_format(path: Path, head: bytes) -> str:
    """The format of a file by its first bytes, with the line that writes it anew; empty for an unknown one."""
    new = path.with_suffix(".safetensors").name
    if head.startswith(b"PK\3\4") and b".npy" in head:
        return f"an archive of NumPy; duoln.save({new!r}, dict(numpy.load({path.name!r}))) writes its arrays"
    if head.startswith((b"PK\3\4", *_PICKLES)):
        return ("a pickle of torch.save, which may run code when it is read; write in PyTorch: "
                f"safetensors.torch.save_file(torch.load({path.name!r}, weights_only=True), {new!r})")
    return ""


# The form of a tree, in the notes of a file: its dicts, lists and tuples, and what its author says of each leaf.

_NOTHING = {"value": None}


def form_of(name: str, tree: Any, of_leaf: Callable[[Any], Any]) -> Any:
    """The form of a tree, in what JSON can hold; `of_leaf` gives that of a leaf, None or an object of one other name.

    Raises:
        DtypeError: a dict has a name that is no text. `name` begins the message.
    """
    if isinstance(tree, dict):
        strange = next((key for key in tree if not isinstance(key, str)), None)
        if strange is not None:
            raise DtypeError(f"[{name}] expected texts as names, found {described(strange)}")
        return {"dict": {key: form_of(name, branch, of_leaf) for key, branch in tree.items()}}
    if isinstance(tree, list | tuple):
        return {"list" if isinstance(tree, list) else "tuple": [form_of(name, branch, of_leaf) for branch in tree]}
    return _NOTHING if tree is None else of_leaf(tree)


def tree_of(form: Any, leaf: Callable[[str, Any], Any], path: str = "") -> Any:
    """The tree of a form, with `leaf(path, form)` at each leaf. Raises ValueError if a form is none."""
    if isinstance(form, Mapping) and len(form) == 1:
        [(kind, branches)] = form.items()
        if kind == "dict" and isinstance(branches, dict):
            return {key: tree_of(branch, leaf, f"{path}.{key}" if path else key) for key, branch in branches.items()}
        if kind in ("list", "tuple") and isinstance(branches, list):
            made = [tree_of(branch, leaf, f"{path}.{k}" if path else str(k)) for k, branch in enumerate(branches)]
            return made if kind == "list" else tuple(made)
        if kind in ("dict", "list", "tuple"):
            raise ValueError(f"expected a dict, list or tuple in the notes, found {form!r:.60}")
    return None if form == _NOTHING else leaf(path, form)
