"""The base of every layer: hyper-parameters, child modules, initial parameters, and a function."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Never

import numpy as np

from duoln import tree
from duoln.core import Tensor
from duoln.core.arguments import check_integer, described
from duoln.core.pytorch_names import OF_MODULES, hinted, name_missing, present_names
from duoln.errors import CallError, DtypeError, ShapeError, UsageError
from duoln.randomness import LARGEST_SEED, Stream

Params = dict[str, Any]
STATISTICS = frozenset(f"{name}{part}" for name in ("mean", "variance") for part in ("", "_x", "_h", "_c"))
"""The names of a population's statistics among the parameters of batch norm and of recurrent layers."""
NOT_GIVEN: Any = None
"""The default of a layer's `x`, so that a call without parameters, `layer(x)`, comes to the error that names them."""


class Module:
    """A layer or model. It holds no arrays: `init` makes a nested dict of them, and each call takes this dict.

    A subclass assigns child modules to attributes and overrides `__call__`. It also overrides `weights` if it has
    arrays of its own. The parameters of a child are under the attribute's name.

        class Classifier(nn.Module):
            def __init__(self, n_in, classes):
                self.hidden, self.out = nn.Linear(n_in, 100), nn.Linear(100, classes)

            def __call__(self, params, x):
                return self.out(params["out"], ops.relu(self.hidden(params["hidden"], x)))

    Attributes:
        gathers: whether the layer normalises by statistics of its batch, which `with_population` is to gather.
    """

    gathers: bool = False

    def __init__(self) -> None:
        """A module without settings."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, value in vars(cls).items():
            if isinstance(value, Module | Tensor):
                raise UsageError(f"[{cls.__name__}] {name}: expected a module to be made in __init__, found "
                                 f"{described(value)} of the class, which all its objects would share")
        if "__init__" in vars(cls):
            cls.__init__ = hinted(cls.__init__)  # type: ignore[method-assign]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _METHODS or (name == "gathers" and not isinstance(value, bool)):
            raise UsageError(f"[{type(self).__name__}] {name}: expected another name for {described(value)}, found one "
                             f"that nn.Module has for itself; {name}_layer would be free")
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return present_names(self, super().__dir__())

    def weights(self, rng: Stream) -> Params:
        """The initial arrays of this module, without those of its children."""
        return {}

    def children(self) -> dict[str, Module]:
        """Child modules by name: by default, the attributes that are modules."""
        return {name: child for name, child in vars(self).items() if isinstance(child, Module)}

    def init(self, rng: Stream | int | None = None) -> Params:
        """The initial parameters, as NumPy arrays. Each array has a random stream with its own name.

        A stream is not advanced: two modules start alike from one stream, and differ from `rng.child(name)` for each.

        Args:
            rng: a stream, or a seed; a seed gives the parameters with which a run of that seed starts.

        Raises:
            DtypeError: `rng` is neither a stream nor a seed, or is missing: no seed is chosen silently.
            ShapeError: the seed is below 0.
            UsageError: parameters would be lost or doubled: an attribute is a tensor or a collection of modules, or
                one module is at two places.
        """
        if not isinstance(rng, Stream):
            if isinstance(rng, bool) or not isinstance(rng, int | np.integer):
                raise DtypeError(f"[{type(self).__name__}] rng: expected a seed, as in init(0), or a stream as "
                                 f"duoln.randomness.Stream(seed, name) makes it, found {described(rng)}")
            rng = Stream(check_integer(type(self).__name__, "rng", rng, 0, LARGEST_SEED), "init")
        _check_attributes(self)
        _check_places(self)
        params, children = self.weights(rng), self.children()
        for name in (*params, *children):
            if wrong := _wrong_with(self, name, name in params, name in children):
                role = "a child" if name in children else "an array"
                raise UsageError(f"[{type(self).__name__}] expected another name for {role}, found {name!r}, {wrong}")
        for name, child in children.items():
            params[name] = child.init(rng.child(name))
        return self.adapted(params, rng)

    def adapted(self, params: Params, rng: Stream) -> Params:
        """Adapt the initial parameters that `init` made for this module and its children; by default nothing changes.

        A model overrides this method to give some of its layers other initial parameters.
        """
        return params

    def modules(self, path: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all modules inside it, each with its dotted path in the parameters."""
        yield path, self
        for name, child in self.children().items():
            yield from child.modules(f"{path}.{name}" if path else name)

    def __getitem__(self, key: object) -> Never:  # Python calls it for `for layer in model` too
        name = type(self).__name__
        raise UsageError(f"[{name}] expected a layer by its name, found {name}[{key!r:.20}]; model.children() has the "
                         "layers by name, as params has their arrays")

    def __call__(self, params: Any, x: Any) -> Any:
        name = type(self).__name__
        has = "forward; rename it, and let it take params first" if "forward" in _methods(type(self)) else "none"
        raise CallError(f"[{name}] expected a method __call__(self, params, x), found {has}")

    def __repr__(self) -> str:
        """The class with its sizes and with the settings that differ from the defaults; then one line for each part."""
        head = f"{type(self).__name__}({', '.join(self._settings())}"
        lines = [f"  ({name}): " + _line_of(part).replace("\n", "\n  ") for name, part in self._parts().items()]
        return "\n".join([head, *lines, ")"]) if lines else f"{head})"

    def _parts(self) -> Mapping[str, Any]:
        """The parts that `repr` shows below the module: by default its children."""
        return self.children()

    def _settings(self) -> Iterator[str]:
        """The constructor's arguments that are also attributes, hold numbers or names, and differ from the defaults."""
        for name, argument in inspect.signature(type(self)).parameters.items():
            value = vars(self).get(name)
            if isinstance(value, int | float | str | tuple) and value != argument.default:
                yield f"{name}={value!r}"


_METHODS = frozenset(name for name, member in vars(Module).items() if not name.startswith("__") and callable(member))
"""The names under which an attribute would hide a method."""
name_missing(Module, OF_MODULES)


def _wrong_with(module: Module, name: str, is_array: bool, is_child: bool) -> str:
    """The fault in the name of an array or a child; empty for a good name."""
    if "." in str(name):
        return "a dot in it"
    if is_array and is_child:
        return "a name of the module's own arrays too"
    if is_array and name in STATISTICS and not module.gathers:
        return "the name of a population's statistic, which no optimizer changes"
    return ""


def with_attributes(module: Module, own: Mapping[str, Module]) -> dict[str, Module]:
    """The children that a module has by itself, and those of a subclass: attributes that are other modules.

    Raises:
        UsageError: an attribute has the name of one of its own.
    """
    known = {id(child) for child in own.values()}
    more = {name: child for name, child in Module.children(module).items() if id(child) not in known}
    for name in more.keys() & own.keys():
        raise UsageError(f"[{type(module).__name__}] {name}: expected another name for the attribute, found the name "
                         f"of one of its {len(own)} layers")
    return {**own, **more}


def _check_attributes(module: Module) -> None:
    """Raises UsageError for a tensor, an array of another library than NumPy, or a module in a collection that is no
    child: none would be trained.
    """
    children = {id(child) for child in module.children().values()}
    for name, value in vars(module).items():
        for part in _parts_of(value):
            if isinstance(part, Tensor) or (hasattr(part, "__dlpack__") and not isinstance(part, np.ndarray)):
                raise UsageError(f"[{type(module).__name__}] {name}: expected no tensor, because an attribute is never "
                                 f"trained, found {described(part)}; {OF_MODULES['register_parameter']}. A constant is "
                                 "a NumPy array, of which __call__ makes a tensor")
            if isinstance(part, Module) and part is not value and id(part) not in children:
                raise UsageError(f"[{type(module).__name__}] {name}: expected a module, found a {type(value).__name__} "
                                 "of modules; put them into nn.Sequential, or override `children`")


def _parts_of(value: Any) -> Iterator[Any]:
    """A value, or what stands in it where it is a collection."""
    if isinstance(value, dict | list | tuple | set | frozenset):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _parts_of(part)
    else:
        yield value


def _check_places(module: Module) -> None:
    """Raises UsageError if a module with parameters is at two places, because it would have parameters at each."""
    places: dict[int, str] = {}
    for path, part in module.modules():
        first = places.setdefault(id(part), path)
        if first == path:
            continue
        if not first or path.startswith(f"{first}."):
            raise UsageError(f"[{type(module).__name__}] expected children, found at '{path}' the module that it is "
                             "in; a child has no attribute for its parent")
        if tree.leaves(part.init(0)):
            raise UsageError(f"[{type(module).__name__}] expected a module at one place, found the same "
                             f"{type(part).__name__} at '{first}' and '{path}', where it would have other parameters; "
                             "make two modules, or keep one and call it twice with the same params")


def _methods(kind: type) -> set[str]:
    return {name for base in kind.__mro__ for name, member in vars(base).items() if callable(member)}


def _line_of(part: Any) -> str:
    """The `repr` of a module, or the name of a function."""
    return repr(part) if isinstance(part, Module) else getattr(part, "__name__", repr(part))


def check_params(name: str, params: Any) -> None:
    """Raises ShapeError for parameters of a layer without arrays that are no dict, such as its input."""
    if not isinstance(params, dict):
        raise ShapeError(f"[{name}] expected parameters, an empty dict, found {described(params)}; call "
                         "layer(params, x), where params = duoln.to_tensors(layer.init(0)) or a branch of the model's")


def parameter(name: str, params: Params, key: str) -> Tensor:
    """`params[key]`, an array. The error for a missing entry names the layer and the entry."""
    try:
        y: Tensor = params[key]
        return y
    except (KeyError, TypeError, IndexError):
        raise _missing(name, params, (key,)) from None


def branch(name: str, params: Params, key: str) -> Params:
    """`params[key]`, the parameters of a child. The error for a missing entry names the layer and the entry."""
    try:
        entry: Params = params[key]
        return entry
    except (KeyError, TypeError, IndexError):
        raise _missing(name, params, (key,)) from None


def branch_at(name: str, params: Params, path: str) -> Params:
    """The branch of the layer at a dotted path. Raises as `branch`."""
    own = params
    for key in path.split(".") if path else ():
        own = branch(name, own, key)
    return own


def parameters(name: str, params: Params, keys: Sequence[str]) -> list[Any]:
    """Several entries of `params`.

    Raises:
        ShapeError: an entry is missing; the message names the layer, the entry and the entries that exist.
    """
    try:
        return [params[key] for key in keys]
    except (KeyError, TypeError, IndexError):
        raise _missing(name, params, keys) from None


def _missing(name: str, params: Any, keys: Sequence[str]) -> ShapeError:
    has = ", ".join(sorted(map(str, params))) if isinstance(params, dict) else described(params)
    missing = next((key for key in keys if not isinstance(params, dict) or key not in params), keys[0])
    return ShapeError(f"[{name}] expected parameters with '{missing}', found {has or 'none'}{_advice(params)}")


def _advice(params: Any) -> str:
    """The end of an error about parameters that are not those of the module."""
    if isinstance(params, Tensor):
        return "; call layer(params, x), where params = duoln.to_tensors(layer.init(0)) or a branch of the model's"
    branches = [key for key, entry in params.items() if isinstance(entry, dict)] if isinstance(params, dict) else []
    return f"; give a child module its own branch, such as params[{branches[0]!r}]" if branches else ""
