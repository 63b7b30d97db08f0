"""The base of every layer: hyper-parameters, child modules, initial parameters, and a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import FunctionType
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

    A subclass assigns child modules, or lists, tuples and dicts of them, to attributes and overrides `__call__`. It
    also overrides `weights` if it has arrays of its own. `params` has a branch of the same form under each name.

        class Classifier(nn.Module):
            def __init__(self, n_in, classes, depth):
                self.hidden = [nn.Linear(n_in if k == 0 else 100, 100) for k in range(depth)]
                self.out = nn.Linear(100, classes)

            def __call__(self, params, x):
                m = self.bind(params)
                for layer in m.hidden:          # self.hidden[0](params["hidden"][0], x), and so on
                    x = ops.relu(layer(x))
                return m.out(x)                 # self.out(params["out"], x)

    Attributes:
        gathers: whether the layer normalises by statistics of its batch, which `with_population` is to gather.
    """

    gathers: bool = False

    def __init__(self) -> None:
        """A module without settings."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, value in vars(cls).items():
            for part in _parts_of(value):
                if isinstance(part, Module | Tensor):
                    raise UsageError(f"[{cls.__name__}] {name}: expected a module to be made in __init__, found "
                                     f"{described(part)} of the class, which all its objects would share")
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
        """Child modules by their paths in the parameters: by default the attributes that are modules, such as "out",
        and the modules in lists, tuples and dicts, such as "hidden.0".
        """
        return {path: child for name, value in vars(self).items() for path, child in tree.items(value, name)
                if isinstance(child, Module)}

    def bind(self, params: Params) -> Any:
        """This module with its parameters, for use within `__call__`: `m = self.bind(params)`.

        `m.out(x)` is `self.out(params["out"], x)`, `m.hidden[0](x)` is `self.hidden[0](params["hidden"][0], x)`, and
        `m.block.out(x)` is `self.block.out(params["block"]["out"], x)`. `m.scale` is `params["scale"]` for an array of
        the module's own, and the attribute `self.scale` where there is none. A method that takes `params` first gets
        them: `m.table.as_linear(x)`.
        """
        return _Bound(self, params)

    def init(self, rng: Stream | int | None = None) -> Params:
        """The initial parameters, as NumPy arrays. Each array has a random stream with its own name.

        A stream is not advanced: two modules start alike from one stream, and differ from `rng.child(name)` for each.

        Args:
            rng: a stream, or a seed; a seed gives the parameters with which a run of that seed starts.

        Raises:
            DtypeError: `rng` is neither a stream nor a seed, or is missing: no seed is chosen silently.
            ShapeError: the seed is below 0.
            UsageError: parameters would be lost or doubled: an attribute is a tensor, or a collection with modules
                and other things, or one module is at two places.
        """
        if not isinstance(rng, Stream):
            if isinstance(rng, bool) or not isinstance(rng, int | np.integer):
                raise DtypeError(f"[{type(self).__name__}] rng: expected a seed, as in init(0), or a stream as "
                                 f"duoln.Stream(seed, name) makes it, found {described(rng)}")
            rng = Stream(check_integer(type(self).__name__, "rng", rng, 0, LARGEST_SEED), "init")
        _check_attributes(self)
        _check_places(self)
        params, children = self.weights(rng), self.children()
        for name in (*params, *children):
            if wrong := _name_fault(self, name, params, children):
                role = "a child" if name in children else "an array"
                raise UsageError(f"[{type(self).__name__}] expected another name for {role}, found {name!r}, {wrong}")
        params |= map_children(self, lambda path, child: child.init(rng.child(path)))
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
        has = "forward; rename it, and let it take params first" if hasattr(type(self), "forward") else "none"
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
            if isinstance(value, int | float | str | tuple) and value != argument.default and not _has_modules(value):
                yield f"{name}={value!r}"


_METHODS = frozenset(name for name, member in vars(Module).items() if not name.startswith("__") and callable(member))
"""The names under which an attribute would hide a method."""
name_missing(Module, OF_MODULES)


class _Bound(partial[Any]):
    """A module with its parameters. It is a `partial`, whose call is no function of Python's: a child costs 0.3 us."""

    def __getattribute__(self, name: str) -> Any:
        module, (params,) = _module_of(self), _args_of(self)
        own = params.get(name, _ABSENT) if isinstance(params, dict) else _ABSENT
        if own is _ABSENT:
            return _unbound(module, params, name)
        part = module.__dict__.get(name)
        return _Bound(part, own) if isinstance(part, Module) else _bound_in(type(module).__name__, part, own)

    def __repr__(self) -> str:
        return repr(_module_of(self))


_module_of, _args_of = (vars(partial)[name].__get__ for name in ("func", "args"))
_ABSENT = object()


def _has_modules(value: Any) -> bool:
    """True for a collection of modules."""
    return isinstance(value, dict | list | tuple) and any(isinstance(part, Module) for part in tree.leaves(value))


def _bound_in(name: str, part: Any, own: Any) -> Any:
    """The modules of a collection with their branches of `own`; `own` itself for what is no module."""
    if isinstance(part, Module):
        return _Bound(part, own)
    if not _has_modules(part):
        return own
    if isinstance(part, dict):
        return {key: _bound_in(name, each, branch(name, own, key)) for key, each in part.items()}
    return [_bound_in(name, each, branch(name, own, k)) for k, each in enumerate(part)]


def _unbound(module: Module, params: Params, name: str) -> Any:
    """An attribute without a branch of the parameters; a method that takes them gets them."""
    try:
        value = getattr(module, name)
    except AttributeError as error:
        if isinstance(params, dict) and not name.startswith("__"):
            error.args = (f"{error}; its parameters are {', '.join(map(str, params)) or 'none'}",)
        raise
    if isinstance(value, Module):
        raise _missing(type(module).__name__, params, (name,))
    function: Any = getattr(value, "__func__", None)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    takes_params = isinstance(function, FunctionType) and function.__code__.co_varnames[1:2] == ("params",)
    return partial(value, params) if takes_params else value


def map_children(module: Module, of: Callable[[str, Module], Any]) -> Params:
    """Parameters of a module's children, `of(path, child)` for each: what stands in a list stands in a list."""
    children = module.children()
    result: Params = {}
    for name in branch_names(children):
        form = children[name] if name in children else vars(module)[name]
        result[name] = tree.unflatten(form, [of(path, child) for path, child in tree.items(form, name)])
    return result


def branch_names(paths: Iterable[str]) -> list[str]:
    """The names of the branches of the parameters in which children with such paths are."""
    return list(dict.fromkeys(path.partition(".")[0] for path in paths))


def _name_fault(module: Module, name: str, arrays: Params, children: Mapping[str, Module]) -> str:
    """The fault in the name of an array or a child; empty for a good name."""
    first, dot, _ = str(name).partition(".")
    if dot and (name in arrays or first in children
                or dict(tree.items(vars(module).get(first), first)).get(name) is not children[name]):
        return "a dot in it"
    if name in children and first in arrays:
        return "a name of the module's own arrays too"
    if name in arrays and name in STATISTICS and not module.gathers:
        return "the name of a population's statistic, which no optimizer changes"
    return ""


def with_attributes(module: Module, own: Mapping[str, Module]) -> dict[str, Module]:
    """The children that a module has by itself, and those of a subclass: attributes that are other modules.

    Raises:
        UsageError: an attribute has the name of one of its own.
    """
    known = {id(child) for child in own.values()}
    more = {name: child for name, child in Module.children(module).items() if id(child) not in known}
    for name in {*branch_names(more)} & own.keys():
        raise UsageError(f"[{type(module).__name__}] {name}: expected another name for the attribute, found the name "
                         f"of one of its {len(own)} layers")
    return {**own, **more}


def _check_attributes(module: Module) -> None:
    """Raises UsageError for a tensor, an array of another library than NumPy, or a module in a collection that is no
    child, none of which would be trained, and for a collection that its parameters cannot mirror.
    """
    children = module.children()
    known = {id(child) for child in children.values()}
    for name, value in vars(module).items():
        where, kind = f"[{type(module).__name__}] {name}", type(value).__name__
        is_branch = any(path.startswith(f"{name}.") for path in children)
        for part in _parts_of(value):
            if isinstance(part, Tensor) or (hasattr(part, "__dlpack__") and not isinstance(part, np.ndarray)):
                raise UsageError(f"{where}: expected no tensor, because an attribute is never trained, found "
                                 f"{described(part)}; {OF_MODULES['register_parameter']}. A constant is a NumPy "
                                 "array, of which __call__ makes a tensor")
            if isinstance(part, Module) and part is not value and id(part) not in known:
                raise UsageError(f"{where}: expected a list, tuple or dict of modules, or a `children` that has them, "
                                 f"found a {kind} of modules")
            if is_branch and not isinstance(part, Module):
                raise UsageError(f"{where}: expected modules alone in a {kind} of modules, found {described(part)} too")
        for key in _keys_of(value) if is_branch else ():
            if not isinstance(key, str) or "." in key:
                raise UsageError(f"{where}: expected texts without a dot as names of modules, found {key!r}")


def _keys_of(value: Any) -> Iterator[Any]:
    """The keys of a dict, and of the dicts in a collection."""
    if isinstance(value, dict | list | tuple):
        yield from value if isinstance(value, dict) else ()
        for part in value.values() if isinstance(value, dict) else value:
            yield from _keys_of(part)


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


def _line_of(part: Any) -> str:
    """The `repr` of a module, or the name of a function."""
    return repr(part) if isinstance(part, Module) else getattr(part, "__name__", repr(part))


def check_params(name: str, params: Any) -> None:
    """Raises ShapeError for parameters of a layer without arrays that are no dict, such as its input."""
    if not isinstance(params, dict):
        raise ShapeError(f"[{name}] expected parameters, an empty dict, found {described(params)}; call "
                         "layer(params, x), where params = duoln.init(layer, 0) or a branch of the model's")


def branch(name: str, params: Any, key: str | int) -> Any:
    """`params[key]`, the parameters of a child. The error for a missing entry names the layer and the entry."""
    try:
        return params[key]
    except (KeyError, TypeError, IndexError):
        raise _missing(name, params, (key,)) from None


parameter: Callable[[str, Params, str], Tensor] = branch
"""The same for `params[key]`, an array."""


def branch_at(name: str, params: Params, path: str) -> Params:
    """The branch of the layer at a dotted path. Raises as `branch`."""
    own = params
    for key in path.split(".") if path else ():
        own = branch(name, list_as_dict(own), key)
    return own


def list_as_dict(params: Any) -> Any:
    """A list of branches as a dict, with the names that they have in a path; else the branch as it is."""
    return {str(k): own for k, own in enumerate(params)} if isinstance(params, list | tuple) else params


def parameters(name: str, params: Params, keys: Sequence[str]) -> list[Any]:
    """Several entries of `params`.

    Raises:
        ShapeError: an entry is missing; the message names the layer, the entry and the entries that exist.
    """
    try:
        return [params[key] for key in keys]
    except (KeyError, TypeError, IndexError):
        raise _missing(name, params, keys) from None


def _missing(name: str, params: Any, keys: Sequence[str | int]) -> ShapeError:
    own, names = list_as_dict(params), [*map(str, keys)]
    has = ", ".join(sorted(map(str, own))) if isinstance(own, dict) else described(params)
    missing = next((key for key in names if not isinstance(own, dict) or key not in own), names[0])
    return ShapeError(f"[{name}] expected parameters with '{missing}', found {has or 'none'}{_advice(params)}")


def _advice(params: Any) -> str:
    """The end of an error about parameters that are not those of the module."""
    if isinstance(params, Tensor):
        return "; call layer(params, x), where params = duoln.init(layer, 0) or a branch of the model's"
    entries = params.items() if isinstance(params, dict) else enumerate(params) if isinstance(params, list) else ()
    branches = [key for key, entry in entries if isinstance(entry, dict | list | tuple)]
    return f"; give a child module its own branch, such as params[{branches[0]!r}]" if branches else ""
