"""`duoln.find_rate`: the range test of learning rates (Smith 2017, "Cyclical learning rates", section 3.3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duoln.backends.protocol import Backend
from duoln.core import Tensor, compile
from duoln.core.arguments import ABOVE_0, check_function, check_integer, check_number, described
from duoln.data.text import csv_text
from duoln.errors import DivergedError, DtypeError, ShapeError, UsageError
from duoln.pictures import style
from duoln.pictures.drawing import figure
from duoln.runtime import tensor, to_tensors
from duoln.system.filesystem import write_own
from duoln.tasks.task import Config, Task
from duoln.tasks.values import Splits
from duoln.training.train_step import TaskDropout, make_step, start_state

LEAST_UPDATES = 10
_NEIGHBOURS = 0.05
"""The share of the updates that are the neighbours of a point on each side of it."""
_RISE = 3.0
"""The test ends when the mean of the last losses is so many times the loss's fall, or its size, above its minimum."""
_TENTH = 0.1


class RateTest(NamedTuple):
    """The result of a range test. The two rates that it proposes are suggestions to start a search from."""

    rates: np.ndarray
    """float64 (updates,)."""
    losses: np.ndarray
    """float64 (updates,): the loss that each update found, before it changed the parameters."""
    smoothed: np.ndarray
    """float64 (updates,): the losses on lines through their neighbours, and never beyond these."""
    diverged: bool
    """True if the test ended early, because the loss rose far or was not finite."""
    minimum: float | None
    """The rate at which the smoothed loss is least; None if the loss never falls."""
    steepest: float | None
    """The rate at which the smoothed loss falls fastest over the logarithm of the rate, among those with neighbours on
    both sides; None if it never falls."""
    tenth_of_minimum: float | None
    """A tenth of the rate `minimum`."""


def find_rate(train_step: Callable[[float], Any], low: float = 1e-6, high: float = 1.0,
              updates: int = 100) -> RateTest:
    """Find between which learning rates training works: the rate grows with each update, and the loss tells.

        def train(rate):
            global params, slots
            params, slots, loss = train_step(params, slots, next(batches), duoln.tensor(rate, backend))
            return loss

        test = duoln.find_rate(train)
        test.steepest, test.tenth_of_minimum

    The rate of update k is low * (high / low) ** (k / (updates - 1)). The test ends early when the loss is not finite,
    or when it is far above its minimum. The loss is smoothed by straight lines: the value and the slope at a point are
    those of the line of least squares, over the logarithm of the rate, through the point and its neighbours; a
    twentieth of the updates are neighbours on each side. The parameters are of no use afterwards: start training from
    new ones.

    Args:
        train_step: makes one update with the rate that it gets, a number, and returns the loss: a number or a tensor of
            shape (). It keeps the state itself.
        low: the first rate.
        high: the last rate, above `low`.
        updates: at least 10.

    Raises:
        DtypeError: an argument, or a loss, is not what is expected. ShapeError: there are too few updates, or a loss
            has axes. UsageError: the rates are not in order. DivergedError: the first loss is not finite.
    """
    check_function("find_rate", "train_step", train_step)
    check_range(low, high, updates)
    rates, losses = np.geomspace(low, high, updates), np.empty(updates)
    width = max(round(_NEIGHBOURS * updates), 1)
    made = 0
    for k, rate in enumerate(rates):
        loss = _number(train_step(float(rate)))
        if not math.isfinite(loss):
            break
        losses[k] = loss
        made = k + 1
        if _has_risen(losses[:made], width):
            break
    if not made:
        raise DivergedError(f"[find_rate] expected a finite loss of the first update, found {loss}")
    return _propose_rates(rates[:made], losses[:made], width, made < updates or not math.isfinite(loss))


def check_range(low: float, high: float, updates: int) -> None:
    """Raises the errors of `find_rate` for rates or a number of updates that it does not take."""
    low, high = check_number("find_rate", "low", low, ABOVE_0), check_number("find_rate", "high", high, ABOVE_0)
    if low >= high:
        raise UsageError(f"[find_rate] expected low below high, found {low:g} and {high:g}")
    check_integer("find_rate", "updates", updates, LEAST_UPDATES)


def task_rates(task: Task, cfg: Config, splits: Splits, backend: Backend, low: float, high: float,
               updates: int) -> RateTest:
    """`find_rate` for a task, from new parameters: its batches, its loss and its optimizer with its clipping, but not
    its schedule.
    """
    model, optimizer = task.model(cfg), task.optimizer(cfg, splits.updates(cfg.epochs))
    state = start_state(model, optimizer, cfg.seed, backend)
    train_step, made, dropout = compile(make_step(task, model, optimizer)), 0, TaskDropout(task, model, cfg.seed)

    def train(rate: float) -> float:
        nonlocal state, made
        batch = to_tensors(dropout(made, splits.train(made)), backend)
        state, figures = train_step(state, batch, tensor(np.float32(rate), backend))
        made += 1
        return float(figures["loss"].item())

    return find_rate(train, low, high, updates)


def _number(loss: Any) -> float:
    if isinstance(loss, Tensor):
        if loss.shape != ():
            raise ShapeError(f"[find_rate] expected a loss of shape (), found {loss.shape}")
        loss = loss.item()
    if isinstance(loss, np.generic | np.ndarray) and np.ndim(loss) == 0:
        loss = loss.item()
    if isinstance(loss, bool) or not isinstance(loss, int | float):
        raise DtypeError(f"[find_rate] expected a number as the loss of an update, found {described(loss)}")
    return float(loss)


def _has_risen(losses: np.ndarray, width: int) -> bool:
    """True if the mean of the last losses is far above the least one, beside the loss's fall and its size."""
    if len(losses) < 2 * width:
        return False
    means = np.convolve(losses, np.full(width, 1 / width), "valid")
    least = means.min()
    return bool(means[-1] - least > _RISE * max(means[0] - least, abs(least)))


def _propose_rates(rates: np.ndarray, losses: np.ndarray, width: int, diverged: bool) -> RateTest:
    lines, slopes = smooth(np.log(rates), losses, width)
    near = [losses[max(k - width, 0):k + width + 1] for k in range(len(losses))]
    smoothed = np.clip(lines, [part.min() for part in near], [part.max() for part in near])
    least = int(smoothed.argmin())
    slopes[:width] = slopes[len(slopes) - width:] = 0.0  # with neighbours on one side alone a slope is mostly noise
    steepest = int(slopes[:least + 1].argmin())  # what falls after the minimum has risen before
    if slopes[steepest] >= 0 or least == 0:
        return RateTest(rates, losses, smoothed, diverged, None, None, None)
    least_rate = float(rates[least])
    return RateTest(rates, losses, smoothed, diverged, least_rate, float(rates[steepest]), _TENTH * least_rate)


def smooth(places: Sequence[float] | np.ndarray, values: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """At each place the value and slope of the line of least squares through it and `width` neighbours on each side.

    Near an end there are fewer neighbours on that side.

    Shape:
        places (n,), values (n,) -> (n,), (n,).
    """
    x = np.asarray(places, np.float64)
    smoothed, slopes = np.empty(len(x)), np.zeros(len(x))
    for k in range(len(x)):
        near = slice(max(k - width, 0), k + width + 1)
        offsets, mean = x[near] - x[near].mean(), values[near].mean()
        squares = (offsets ** 2).sum()
        if squares > 0:
            slopes[k] = (offsets * (values[near] - mean)).sum() / squares
        smoothed[k] = mean + slopes[k] * (x[k] - x[near].mean())
    return smoothed, slopes


# Table and picture --------------------------------------------------------------------------------------

_HEIGHT = 3.6
_ABOVE = 0.5
"""The height of the picture above the first losses, as a share of the loss's fall; a diverging loss has no end."""


def write_table(test: RateTest, target: Path) -> Path:
    """Write a line for each update: rate, loss, smoothed loss.

    Raises:
        CheckpointError: the file cannot be written.
    """
    rows = zip(test.rates.tolist(), test.losses.tolist(), test.smoothed.tolist(), strict=True)
    write_own(target, csv_text([("rate", "loss", "smoothed"), *rows]).encode())
    return target


def draw(title: str, test: RateTest, own: float, target: Path) -> Path:
    """Draw the losses, the smoothed loss, the rates that are suggested and the rate that the task has itself.

    Raises:
        UsageError, CheckpointError: as `figure`.
    """
    marks = {"falls fastest": test.steepest, "a tenth of the least loss's rate": test.tenth_of_minimum,
             "the task's own rate": own}
    with figure(target, size=(style.WIDTH, _HEIGHT)) as (_, [[axes]]):
        axes.plot(test.rates, test.losses, ".", color="0.6", markersize=4, label="loss")
        axes.plot(test.rates, test.smoothed, label="smoothed", **style.look(0).line())
        axes.set_xscale("log")
        for k, (label, rate) in enumerate(marks.items(), 1):
            if rate is not None and test.rates[0] <= rate <= test.rates[-1]:
                axes.axvline(rate, label=f"{label}: {rate:.2g}", **style.look(k).line())
        first, least = float(test.smoothed[0]), float(min(test.smoothed.min(), test.losses.min()))
        top = first + _ABOVE * (first - least)
        if test.losses.max() > top > first:
            axes.set_ylim(least - 0.1 * (top - least), max(top, float(np.median(test.losses))))
        axes.set_title(style.wrapped(title, style.WIDTH), fontsize=style.MIDDLE, loc="left")
        axes.set_xlabel("learning rate, which grows with every update")
        axes.set_ylabel("training loss", fontsize=style.MIDDLE)
        axes.tick_params(labelsize=style.SMALL)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=style.SMALL)
    return target
