"""The contract of a compiled step, checked on every backend.

A step that passes can be traced once and replayed: inputs of one form always give outputs of one form (the tree of
shapes and dtypes), and the step sees few different forms of input. For a form that it knows, straight-line Python reads
the arguments and makes the result: a walk through their trees took as long as some operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from duoln import tree as trees
from duoln.backends.protocol import Array, Backend
from duoln.core.step.program import FunctionText
from duoln.core.tensor import Tensor
from duoln.errors import CompileError

_FILE = "<tree of a compiled step>"
_SEQUENCES = list, tuple  # a union would be made anew at every leaf
_BRANCHES = dict, list, tuple
"""The classes of branches that straight-line Python reads and makes."""
MAX_INPUT_FORMS = 16
"""A step is traced once for each of so many forms of input; for all others it runs as it is."""


def form(tree: Any, leaves: list[Any]) -> Any:
    """The form of a tree of tensors: it is hashable, and equal for trees with equal paths, shapes and dtypes.

    The leaves are added to `leaves`, in their order.
    """
    if isinstance(tree, Tensor):  # asked first, because most are leaves
        leaves.append(tree)
        return (tree.data.shape, tree.data.dtype)
    if isinstance(tree, dict):
        kind: Any = type(tree)
        if kind is not dict:
            _check_attributes(tree)
            kind = kind, getattr(tree, "default_factory", None)
        return (kind, *tree, *[form(branch, leaves) for branch in tree.values()])
    if isinstance(tree, _SEQUENCES):
        kind = type(tree)
        if kind not in _SEQUENCES:
            _check_attributes(tree)
        return (kind, *[form(branch, leaves) for branch in tree])
    if tree is None:
        return "None"
    leaves.append(tree)
    return None


def _check_attributes(tree: Any) -> None:
    """Raises CompileError for a dict, list or tuple with attributes, which would be constants of the step."""
    attributes = getattr(tree, "__dict__", None)
    if attributes and attributes is not tree:
        raise CompileError(f"[compile] expected a tree whose entries are all it has, found {type(tree).__name__} with "
                           f"the attribute {next(iter(attributes))!r}, which would be a constant of the compiled step")


class _Walk(FunctionText):
    """A function that walks through a tree."""

    def __init__(self, backend: Backend) -> None:
        super().__init__({"Tensor": Tensor, "new": object.__new__, "backend": backend})
        self.leaves: list[str] = []
        """The names of the leaves."""


def reader(args: Any, backend: Backend) -> Callable[[Any], list[Tensor] | None]:
    """A function that gives the leaves of arguments that have the form and the layouts in memory of these.

    It returns None for others, and if a gradient that is still being computed needs one of them. It always does where
    the tree has branches of other classes than dict, list and tuple.
    """
    text = _Walk(backend)
    is_read = _read(text, args, "args", backend)
    return text.function("args", f"[{', '.join(text.leaves)}]", _FILE) if is_read else lambda args: None


def _read(text: _Walk, tree: Any, name: str, backend: Backend) -> bool:
    """Add the lines that read a tree; False for a branch of another class."""
    kind = type(tree)
    if kind is Tensor:
        text.leaves.append(name)
        native = tree.data
        tests = [f"type({name}) is not Tensor", f"{name}.backend is not backend",
                 f"({name}.node is not None and {name}._is_recorded())",
                 f"(native := {name}.data).dtype != {text.name_for(native.dtype)}", f"native.shape != {native.shape}"]
        if not backend.lazy:  # where an axis has one entry, no stride of it counts
            tests.append("not native.flags.c_contiguous" if native.flags.c_contiguous else
                         f"native.strides != {native.strides}")
        text.lines.append(f"if {' or '.join(tests)}: return None")
        return True
    if tree is None:
        text.lines.append(f"if {name} is not None: return None")
        return True
    if kind not in _BRANCHES:
        return False
    names = [f"{name}_{k}" for k in range(len(tree))]
    differs = f"[*{name}] != {text.name_for([*tree])}" if kind is dict else f"len({name}) != {len(tree)}"
    text.lines += [f"if type({name}) is not {kind.__name__} or {differs}: return None",
                   f"[{', '.join(names)}] = {name}{'.values()' if kind is dict else ''}"]
    branches = tree.values() if kind is dict else tree
    return all([_read(text, branch, each, backend) for branch, each in zip(branches, names, strict=True)])


def builder(result: Any, backend: Backend) -> Callable[[Sequence[Array]], Any]:
    """A function from native arrays to a tree of tensors of this form."""
    text = _Walk(backend)
    made = _built(text, result)
    if made is None:
        return lambda natives: trees.unflatten(result, [Tensor(x, backend) for x in natives])
    text.lines.insert(0, f"[{', '.join(text.leaves)}] = natives")
    return text.function("natives", made, _FILE)


def _built(text: _Walk, tree: Any) -> str | None:
    """The expression that makes a tree of tensors; None for a branch of another class."""
    kind: Any = type(tree)
    if tree is None:
        return "None"
    if not isinstance(tree, (dict, *_SEQUENCES)):
        name = f"x{len(text.leaves)}"
        text.leaves.append(name)
        tensor = f"tensor_of_{name}"  # made without a call of Python's
        text.lines.append(f"{tensor} = new(Tensor); {tensor}.data = {name}; {tensor}.backend = backend; "
                          f"{tensor}.node = None")
        return tensor
    if kind not in _BRANCHES:
        return None
    made = [_built(text, branch) for branch in (tree.values() if isinstance(tree, dict) else tree)]
    if None in made:
        return None
    if kind is dict:
        return f"{{{', '.join([f'{text.name_for(key)}: {each}' for key, each in zip(tree, made, strict=True)])}}}"
    entries = "".join([f"{each}, " for each in made])
    return f"[{entries}]" if kind is list else f"({entries})"
