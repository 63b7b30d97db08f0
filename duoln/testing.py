"""The checks that duoln's own tests use, for authors of operators, rules and tasks.

    check_op(fn, inputs, reference)     values and gradients of an operator on one backend
    check_rule(op, rule, inputs, ...)   a fast rule against the composed one, and that it keeps its promises
    check_task(task)                    everything that training, resuming and reporting need of a task
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from duoln import runtime, tree
from duoln.backends.protocol import FLOATS, Backend
from duoln.checkpoint import load
from duoln.core import Op, Rule, Tensor, gradcheck
from duoln.core.tape import pullback, tensors_of
from duoln.errors import DuolnError, GradientError
from duoln.pictures import can_draw
from duoln.randomness import Stream
from duoln.runfolder import RunFolder
from duoln.tasks.spec import Config, Splits, Task, make_config
from duoln.train import Trainer
from duoln.trained import load_trained

_SAFETY = 8.0
_DERIVATIVE = 1e-4
"""Relative error to allow a derivative along a line: a line may cross the kinks of a few rectifiers."""
_STEP = 1e-8
"""How far along the line: of the 100,000 rectifiers and maxima of a convolutional network some have a kink within
1e-7."""
_AGREEMENT = 1e-4
"""Relative difference to allow between the losses of two backends, in float32."""


def tolerance(dtype: str, length: int) -> float:
    """The relative error to allow: 8 eps sqrt(n) for a reduction or product over n values."""
    return float(_SAFETY * np.finfo(dtype).eps * np.sqrt(max(length, 1)))


def check_close(found: np.ndarray, expected: np.ndarray, limit: float, what: str) -> None:
    """Raises AssertionError unless shapes are equal and no value is further off than `limit` of the largest.

    Values that are not finite must be equal.
    """
    if found.shape != expected.shape:
        raise AssertionError(f"{what}: expected shape {expected.shape}, found {found.shape}")
    if not expected.size:
        return
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite].astype(found.dtype), equal_nan=True):
        raise AssertionError(f"{what}: the values that are not finite differ")
    wide = expected[finite].astype(np.float64)
    if not wide.size:
        return
    error = np.abs(found[finite].astype(np.float64) - wide)
    allowed = limit * max(float(np.max(np.abs(wide))), 1e-30)
    if not float(np.max(error)) <= allowed:
        worst = int(np.argmax(error))
        raise AssertionError(f"{what}: expected {wide[worst]:.9g}, found {found[finite].reshape(-1)[worst]:.9g} "
                             f"at value {worst} (allowed difference {allowed:.3g})")


def check_op(fn: Callable[..., Any], inputs: Sequence[np.ndarray], reference: Callable[..., Any], backend: Backend,
             length: int = 1, differentiable: bool = True, dtype: str = "float32") -> None:
    """Check values, shapes, dtypes and all gradients of `fn` on one backend.

    Values are compared with `reference(*inputs in float64)`. Gradients in float64 on NumPy are compared with
    central differences; on any other backend or dtype with those float64 ones.

    Args:
        fn: takes tensors, gives a tensor or a tuple of tensors.
        inputs: arrays; float ones are cast to `dtype`, int and bool ones are passed as they are.
        reference: plain NumPy, from the equation.
        backend: where to check.
        length: how many values the longest reduction adds up.
        differentiable: whether to check gradients.
        dtype: "float32" or "float64".

    Raises:
        AssertionError, GradientError: a value, shape, dtype or gradient is wrong.
    """
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in inputs]
    limit = tolerance(dtype, length)
    tensors = [Tensor(backend.asarray(a, dtype if a.dtype.kind == "f" else None), backend) for a in wide]
    outs = fn(*tensors)
    expected = reference(*wide)
    for k, (found, plain) in enumerate(zip(_as_tuple(outs), _as_tuple(expected), strict=True)):
        value = np.asarray(plain)
        if value.dtype.kind == "f" and found.dtype != dtype:
            raise AssertionError(f"output {k}: expected dtype {dtype}, found {found.dtype}")
        check_close(found.numpy(), value, limit, f"output {k} on {backend.name}")
    if not differentiable:
        return
    numpy = runtime.backend("numpy")
    exact = [Tensor(numpy.asarray(a), numpy) for a in wide]
    if backend.name == "numpy" and dtype == "float64":
        gradcheck(fn, *exact)
        return
    for k, (mine, theirs) in enumerate(zip(_gradients(fn, tensors), _gradients(fn, exact), strict=True)):
        check_close(mine, theirs, 4 * limit, f"gradient of float input {k} on {backend.name}")


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def _gradients(fn: Callable[..., Any], args: Sequence[Tensor]) -> list[np.ndarray]:
    """The gradients of sum(w * outputs), with the same w on every backend."""
    floats = [i for i, a in enumerate(args) if a.dtype in FLOATS]
    backend = args[0].backend

    def call(params: list[Tensor]) -> Any:
        full = list(args)
        for i, p in zip(floats, params, strict=True):
            full[i] = p
        return fn(*full)

    outs, back, tape = pullback(call, [args[i] for i in floats])
    rng = np.random.default_rng(1)
    weights = [rng.standard_normal(o.shape) if o.dtype in FLOATS else None for o in tensors_of(outs)]
    gradients = back([None if w is None else backend.asarray(w, args[floats[0]].dtype) for w in weights])
    tape.closed = True
    for g, i in zip(gradients, floats, strict=True):
        if backend.dtype(g) != args[i].dtype or tuple(g.shape) != args[i].shape:
            raise AssertionError(f"gradient of input {i}: expected {args[i].dtype} of shape {args[i].shape}, "
                                 f"found {backend.dtype(g)} of shape {g.shape}")
    return [backend.to_numpy(g) for g in gradients]


def check_rule(op: Op[Any, Any], rule: Rule, inputs: Sequence[np.ndarray | None], attrs: Mapping[str, Any],
               backend: Backend, length: int = 1) -> None:
    """Check a fast rule: values, saved state and gradients against the composed rule, for every set of needs.

    Also that it repeats to the bit, and writes into neither its inputs, what it saved, nor `gout`.

    Raises:
        AssertionError: it does not; or `supports` refuses these inputs, so that nothing was checked.
    """
    natives = [None if a is None else backend.asarray(a) for a in inputs]
    before = [None if a is None else backend.to_numpy(a) for a in natives]
    refusal = rule.supports(backend, *natives, **attrs) if rule.supports else None
    if refusal:
        raise AssertionError(f"[{op.name}] rule '{rule.name}' refuses these inputs: {refusal}")
    composed = op.rules(backend.name)[-1]
    limit = tolerance(next(a.dtype.name for a in inputs if a is not None and a.dtype.kind == "f"), length)
    out, saved = rule.forward(backend, *natives, **attrs)
    expected, their_saved = composed.forward(backend, *natives, **attrs)
    again, _ = rule.forward(backend, *natives, **attrs)
    for k, (a, b, c) in enumerate(zip(_as_tuple(out), _as_tuple(expected), _as_tuple(again), strict=True)):
        check_close(backend.to_numpy(a), backend.to_numpy(b), limit, f"[{op.name}] output {k}")
        _check_bits(backend, a, c, f"[{op.name}] output {k} of a second run")
    if rule.vjp is None or composed.vjp is None:
        return
    rng = np.random.default_rng(2)
    gouts = tuple(backend.asarray(rng.standard_normal(o.shape), backend.dtype(o)) for o in _as_tuple(out))
    gout = gouts if isinstance(out, tuple) else gouts[0]
    kept = [backend.to_numpy(g) for g in gouts]
    floats = [a is not None and a.dtype.kind == "f" for a in inputs]
    everything = composed.vjp(backend, their_saved, gout, tuple(floats))
    for needs in [tuple(floats), *(tuple(i == j and f for j, f in enumerate(floats)) for i in range(len(floats)))]:
        if not any(needs):
            continue
        mine = rule.vjp(backend, saved, gout, needs)
        second = rule.vjp(backend, saved, gout, needs)
        for k, (a, b, c, need) in enumerate(zip(mine, everything, second, needs, strict=True)):
            if not need:
                continue
            check_close(backend.to_numpy(a), backend.to_numpy(b), 8 * limit, f"[{op.name}] gradient {k}, needs {needs}")
            _check_bits(backend, a, c, f"[{op.name}] gradient {k} of a second run")
    for a, b, what in [*zip(natives, before, ["input"] * len(before), strict=True),
                       *zip(gouts, kept, ["gout"] * len(kept), strict=True)]:
        if b is not None and not np.array_equal(backend.to_numpy(a), b, equal_nan=True):
            raise AssertionError(f"[{op.name}] rule '{rule.name}' wrote into its {what}")


def _check_bits(backend: Backend, a: Any, b: Any, what: str) -> None:
    if not np.array_equal(backend.to_numpy(a), backend.to_numpy(b), equal_nan=True):
        raise AssertionError(f"{what} differs from the first")


# Tasks ------------------------------------------------------------------------------------------------

_BELOW = ("duoln.backends", "duoln.kernels", "cupy", "cupyx", "mlx")
"""What a task's module leaves to duoln, so that it runs on every backend; of `duoln.core` it takes no part's inside."""


def check_task(task: Task, preset: str = "smoke", backend: Backend | str = "numpy", steps: int = 4,
               settings: Mapping[str, Any] | None = None, *, gradients: bool = True, agreement: bool = True,
               layering: bool = True) -> None:
    """Check that a task is one: names, every preset and variant, data, a few steps, metrics, exact resume.

    The steps are compiled ones: on NumPy they are held to the contract of `compile` (no value read on the host, stable
    trees and shapes), on MLX they are traced.

    Args:
        task: the task.
        preset: one that takes seconds.
        backend: where to train.
        steps: how many steps to take, even.
        settings: overrides.
        gradients: whether to check the loss's derivative in float64, along one random direction of all parameters;
            not for a loss that bounds or stops gradients on purpose.
        agreement: whether the losses of the first batches must be the same on a second backend, where one is usable.
        layering: whether the task's module may import no array library and nothing of duoln that has one.

    Raises:
        AssertionError: the message says which part of the task is wrong.
        GradientError: the loss's derivative is not that of its values.
        CompileError: a step breaks the contract of `compile`.
    """
    where = runtime.backend(backend) if isinstance(backend, str) else backend
    _check_names(task, preset)
    if layering:
        _check_layering(task)
    other = _second(where) if agreement else None
    for variant in task.variants:
        for name in task.presets:
            make_config(task, variant, name)
        cfg = make_config(task, variant, preset, settings)
        splits = task.data(cfg)
        _check_batches(task, splits, steps)
        if gradients:
            _check_gradient(task, variant, cfg, splits)
        if other is not None:
            _check_agreement(task, variant, cfg, splits, (where, other), min(steps, 2))
        _check_training(task, variant, cfg, splits, where, steps)
        if task.sampling is not None and can_draw():
            _check_sampling(task, variant, cfg, splits, where)


def _check_layering(task: Task) -> None:
    try:
        file, source = inspect.getfile(type(task)), inspect.getsource(inspect.getmodule(type(task)) or type(task))
    except (OSError, TypeError):  # made in an interpreter: there is no file to look at
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names if node.module == "duoln")]
        else:
            continue
        low = [name for name in found if f"{name}.".startswith(("duoln.core.", *(f"{low}." for low in _BELOW)))
               and name != "duoln.core"]
        if low:
            raise AssertionError(f"layering: {file}:{node.lineno}: expected imports of duoln.nn, duoln.ops and what "
                                 f"stands beside them, found {low[0]}")


def _second(first: Backend) -> Backend | None:
    """Another backend of this machine, NumPy before the others."""
    probes = (runtime.probe(name) for name in runtime.CHOICES if name not in ("auto", first.name))
    return next((p.backend for p in probes if p.backend is not None), None)


def _check_gradient(task: Task, variant: str, cfg: Config, splits: Splits) -> None:
    numpy = runtime.backend("numpy")
    model = task.model(cfg)
    params = tree.map(lambda a: a.astype(np.float64), model.init(Stream(cfg.seed, "init")))
    rng = np.random.default_rng(3)
    direction = tree.map(lambda a: runtime.tensor(rng.standard_normal(a.shape), numpy), params)
    batch = {key: runtime.tensor(a.astype(np.float64) if a.dtype.kind == "f" else a, numpy)
             for key, a in splits.train(0).items()}
    start = runtime.to_tensors(params, numpy)

    def along(way: Tensor) -> Tensor:
        return task.loss(model, tree.map(lambda p, d: p + way * d, start, direction), batch)

    try:
        gradcheck(along, runtime.tensor(np.float64(0.0), numpy), step=_STEP, rtol=_DERIVATIVE)
    except GradientError as error:
        raise GradientError(f"loss of '{variant}', in float64, along a direction of all parameters: {error}") from error


def _check_agreement(task: Task, variant: str, cfg: Config, splits: Splits, pair: tuple[Backend, Backend],
                     count: int) -> None:
    model = task.model(cfg)
    params = model.init(Stream(cfg.seed, "init"))
    for step in range(count):
        batch = splits.train(step)
        first, second = (float(task.loss(model, *runtime.to_tensors((params, batch), b))) for b in pair)
        if not abs(first - second) <= _AGREEMENT * max(abs(first), abs(second), 1.0):
            raise AssertionError(f"agreement: '{variant}', batch {step}: expected one loss on every backend, found "
                                 f"{first:.9g} on {pair[0].name} and {second:.9g} on {pair[1].name}")


def _check_names(task: Task, preset: str) -> None:
    for attribute in ("name", "title", "variants", "presets", "columns"):
        if not getattr(task, attribute):
            raise AssertionError(f"the task has no {attribute}")
    if not (dataclasses.is_dataclass(task.config) and issubclass(task.config, Config)):
        raise AssertionError(f"config: expected a dataclass that extends Config, found {task.config!r}")
    if preset not in task.presets:
        raise AssertionError(f"presets: expected '{preset}' among them, found {', '.join(task.presets)}")
    strangers = sorted(task.references.keys() - task.variants.keys())
    if strangers:
        raise AssertionError(f"references: there is no variant {strangers[0]!r}")


def _check_batches(task: Task, splits: Splits, steps: int) -> None:
    if splits.dataset.rung not in ("original", "substitute", "synthetic"):
        raise AssertionError(f"data: expected a rung of original, substitute, synthetic; found {splits.dataset.rung!r}")
    for step in range(steps):
        first, second = splits.train(step), splits.train(step)
        for (path, a), (_, b) in zip(tree.items(first), tree.items(second), strict=True):
            if not isinstance(a, np.ndarray) or a.dtype.name not in ("float32", "int32", "bool"):
                raise AssertionError(f"data: batch entry '{path}': expected a NumPy array of float32, int32 or bool, "
                                     f"found {getattr(a, 'dtype', type(a).__name__)}")
            if not np.array_equal(a, b):
                raise AssertionError(f"data: batch {step} differs when it is asked for again, at '{path}': "
                                     "train(step) must depend on the step alone")


def _check_training(task: Task, variant: str, cfg: Config, splits: Splits, backend: Backend, steps: int) -> None:
    whole = Trainer(task, variant, cfg, splits, backend)
    losses = [whole.advance() for _ in range(steps)]
    metrics = whole.evaluate()
    missing = [c.key for c in task.columns if c.key not in metrics]
    if missing:
        raise AssertionError(f"columns: '{missing[0]}' is not among the metrics {', '.join(sorted(metrics))}")
    bad = [key for key, value in metrics.items() if not np.isfinite(value)]
    if bad:
        raise AssertionError(f"metrics: {bad[0]} is {metrics[bad[0]]}")
    halves = Trainer(task, variant, cfg, splits, backend)
    for _ in range(steps // 2):
        halves.advance()
    with tempfile.TemporaryDirectory() as folder:
        saved = load(halves.save(Path(folder)))
        resumed = Trainer(task, variant, cfg, splits, backend)
        resumed.resume(saved)
    rest = [resumed.advance() for _ in range(steps - steps // 2)]
    if rest != losses[steps // 2:]:
        raise AssertionError(f"resume: expected the losses {losses[steps // 2:]}, found {rest}")
    for (path, a), (_, b) in zip(tree.items(whole.state), tree.items(resumed.state), strict=True):
        if not np.array_equal(a.numpy(), b.numpy()):
            raise AssertionError(f"resume: '{path}' differs from a run that did not stop")


def _check_sampling(task: Task, variant: str, cfg: Config, splits: Splits, backend: Backend) -> None:
    """After one step, read back from its folder, the model gives a picture with the default options, twice the same."""
    assert task.sampling is not None
    with tempfile.TemporaryDirectory() as temporary:
        folder = RunFolder(Path(temporary) / "run", backend)
        try:
            folder.write_config(task.name, variant, cfg)
            trainer = Trainer(task, variant, cfg, splits, backend)
            trainer.advance()
            trainer.save(folder.checkpoints)
        finally:
            folder.close()
        contents = []
        for name in ("first.png", "second.png"):
            files = task.sample(load_trained(task, folder.path, backend), task.sampling(), Path(temporary) / name)
            missing = [str(f) for f in files if not f.is_file()]
            if missing or Path(temporary) / name not in files:
                raise AssertionError(f"sample: expected the file {name} among those it names, all written; found "
                                     f"{', '.join(map(str, files)) or 'none'}")
            contents.append([f.read_bytes() for f in files])
        if contents[0] != contents[1]:
            raise AssertionError("sample: two samples with the same seed differ")


def check_error(kind: type[DuolnError], call: Callable[[], Any], *words: str) -> None:
    """Raises AssertionError unless `call` raises an error of that kind that says all the words."""
    try:
        call()
    except kind as error:
        lost = [w for w in words if w not in str(error)]
        if lost:
            raise AssertionError(f"expected an error that says {lost[0]!r}, found: {error}") from error
        return
    raise AssertionError(f"expected {kind.__name__}, found no error")
