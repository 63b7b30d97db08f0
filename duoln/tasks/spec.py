"""What a task is: everything the author of an experiment writes.

A task brings data, a model, a loss and metrics; duoln brings the training, the runs, the command line and
the reports. A complete one in one file is `duoln.examples.own_task`.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from duoln import strictjson
from duoln.core import Tensor
from duoln.data import Batch
from duoln.errors import DuolnError, TaskError, UsageError, words_of
from duoln.nn import Module, Params
from duoln.optim import Adam, Optimizer

Rung = Literal["original", "substitute", "synthetic"]
Predict = Callable[[Batch], np.ndarray]
PeerBuilder = Callable[[Any, Params], tuple[Callable[[Batch], float], dict[str, str]]]


class Dataset(NamedTuple):
    """What a run was trained on.

    `rung` is "original" (the corpus of the paper), "substitute" (a named stand-in) or "synthetic" (made on
    the spot). A number from a lower rung is never shown without its label.
    """

    name: str
    rung: Rung

    @property
    def label(self) -> str:
        """The name, with the rung where it is not the original."""
        return self.name if self.rung == "original" else f"{self.name}, {self.rung}"


class Column(NamedTuple):
    """How a metric is shown: its key, a heading, and a format for `format()`."""

    key: str
    heading: str
    form: str = ".4f"
    level: str = ""
    """The key of another column, what a rule without training gives: shown once for all runs, and drawn as a level
    across this one's panel."""


def split_columns(columns: Sequence[Column]) -> tuple[list[Column], list[Column]]:
    """The columns of runs, and those that are levels of others."""
    levels = {c.level for c in columns}
    return [c for c in columns if c.key not in levels], [c for c in columns if c.key in levels]


class ReferenceCurve(NamedTuple):
    """A curve of the paper, read off its figure: shown beside runs in a panel of its own."""

    metric: str
    """The column's key."""
    variant: str
    points: Sequence[tuple[float, float]]
    """Along the task's `x_axis`."""


@dataclass(frozen=True)
class Splits:
    """The data of a task.

    Attributes:
        dataset: what it is.
        train: the training batch of a step, a pure function of the step number (see `duoln.data.Batches`).
        steps_per_epoch: how many steps make one pass.
        evaluation: whole splits by name, such as "train", "valid", "test".
    """

    dataset: Dataset
    train: Callable[[int], Batch]
    steps_per_epoch: int
    evaluation: Mapping[str, Batch]


class Trained(NamedTuple):
    """What a run has learnt: what `Task.sample` works with."""

    config: Any
    variant: str
    step: int
    """Updates behind the parameters."""
    model: Module
    params: Params
    """Tensors on the backend that was asked for."""


class Findings(NamedTuple):
    """What a protocol of the task's own found of a trained model: a table for people, figures for programs."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str]
    """Lines below the table."""
    figures: Mapping[str, Any]
    """The same as plain data, for `--json`."""


@dataclass(frozen=True)
class Config:
    """Settings that every task has; a task's own config adds to them."""

    seed: int = 0
    epochs: int = 1
    batch_size: int = 128
    learning_rate: float = 1e-3
    evaluate_every: int = 0
    """Steps between evaluations; 0 is once an epoch."""
    patience: int = 0
    """Evaluations in a row, none better than the best by the task's selection, after which training ends; what it ends
    with is the best. 0 trains for all epochs and ends with the last."""


class Task:
    """An experiment. Subclass it, fill in the names and override the methods.

    Attributes:
        name: what one types.
        title: what one reads.
        paper: where the paper has it, such as "section 6.6, figure 6".
        config: a frozen dataclass that extends `Config`.
        presets: overrides of the config by name: "paper" to the letter, "small" in minutes on a laptop,
            "smoke" in seconds on made data.
        variants: what is compared, each with its overrides, such as `{"ln": {"norm": "layer"}}`.
        references: the paper's claim for each variant, with where it stands.
        columns: the metrics to show, in order.
        selection: which metric says that a checkpoint is the best so far, and whether the "lowest" or the "highest"
            is; the first column's lowest by default.
        x_axis: what curves are drawn against: epochs, or updates ("step") with the training loss beside them.
        batch_axes: along which axis of an array of a training batch the examples stand; 0 where an array is not named,
            None for one that is no row of examples. `duoln run --ranks` shares batches out along it.
        sampling: for a generative task, a frozen dataclass whose fields are the options of `duoln sample NAME`,
            each made by `option`.
        evaluating: for a task whose trained models are judged by a protocol that takes longer than an evaluation during
            training, the same for `duoln evaluate NAME`.
        owner: the distribution that brings the task; it is set where the task is found.
    """

    owner: str = ""
    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    config: ClassVar[type[Config]] = Config
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    references: ClassVar[Mapping[str, str]] = {}
    columns: ClassVar[tuple[Column, ...]] = ()
    selection: ClassVar[tuple[str, Literal["lowest", "highest"]] | None] = None
    x_axis: ClassVar[Literal["epoch", "step"]] = "epoch"
    batch_axes: ClassVar[Mapping[str, int | None]] = {}
    sampling: ClassVar[type | None] = None
    evaluating: ClassVar[type | None] = None

    def data(self, cfg: Any, root: Path | None = None) -> Splits:
        """The data; `root` stands before DUOLN_DATA. Indices are range-checked here, on the host."""
        raise UsageError(f"[{self.name}] the task defines no data")

    def model(self, cfg: Any) -> Module:
        """The model of a configuration."""
        raise UsageError(f"[{self.name}] the task defines no model")

    def loss(self, model: Module, params: Params, batch: dict[str, Tensor]) -> Tensor:
        """The training loss of a batch: a scalar tensor."""
        raise UsageError(f"[{self.name}] the task defines no loss")

    def predict(self, model: Module, params: Params, batch: dict[str, Tensor]) -> Tensor:
        """What `metrics` is made from; by default the model on `batch["x"]`."""
        result: Tensor = model(params, batch["x"])
        return result

    def population(self, model: Module, params: Params, batch: dict[str, Tensor]) -> Tensor:
        """A pass over a training batch from which batch norm gathers a population's statistics; by default the loss.

        A task whose training batches are disturbed on purpose shows them here as an evaluation sees them: dropout
        makes the variance larger, and an evaluation that divides by it sees something else than the training did.
        """
        return self.loss(model, params, batch)

    def metrics(self, predict: Predict, split: Batch) -> dict[str, float]:
        """Figures of one split; `predict` takes a batch of NumPy arrays and gives a NumPy array."""
        raise UsageError(f"[{self.name}] the task defines no metrics")

    def optimizer(self, cfg: Any) -> Optimizer:
        """How to train; Adam by default."""
        return Adam(learning_rate=cfg.learning_rate)

    def reference_curves(self) -> Sequence[ReferenceCurve]:
        """The paper's curves, where their values could be read off; for `duoln report`."""
        return ()

    def sample(self, trained: Trained, options: Any, out: Path) -> list[Path]:
        """What a trained model generates, written to `out`; the files that were written.

        Args:
            trained: the model.
            options: an instance of `sampling`.
            out: the file to write; others may stand beside it.
        """
        raise UsageError(f"[{self.name}] the task has nothing to sample")

    def evaluate(self, trained: Trained, options: Any, say: Callable[[str], None]) -> Findings:
        """What a trained model is worth by the task's own protocol.

        Args:
            trained: the model.
            options: an instance of `evaluating`.
            say: takes one line of progress.
        """
        raise UsageError(f"[{self.name}] the task has no evaluation of its own beside that of `duoln run`")

    def pictures(self, runs: Mapping[str, Trained], folder: Path) -> list[Path]:
        """Pictures of what runs have learnt, beside their curves: `duoln report` asks for them, where it can draw.

        Args:
            runs: the models by what they are called in a legend, on NumPy.
            folder: where to write.
        """
        return []

    def prepare(self, source: Path, target: Path) -> list[Path]:
        """The corpus as it is distributed, in `source`, as the files that `data` reads, below `target`.

        Raises:
            DataError: something in `source` is missing or damaged; the message names the file.
        """
        raise UsageError(f"[{self.name}] the task's data needs no preparing")

    def peer(self, name: str) -> PeerBuilder:
        """The same training step in another library, for `duoln bench train --peer NAME`.

        The result is called with the configuration and our starting parameters, and gives a function from a
        batch to its loss, and facts about the library.
        """
        raise UsageError(f"[{self.name}] expected a peer that the task has, found {name!r}; it has none")


def option(default: Any, help: str) -> Any:
    """A field of `Task.sampling` or `Task.evaluating`: its value where none is given, and what `--help` says of it."""
    return dataclasses.field(default=default, metadata={"help": help})


def make_config(task: Task, variant: str, preset: str | None = None,
                settings: Mapping[str, Any] | None = None) -> Config:
    """The configuration of a run: defaults, then the preset, the variant, and last the user's settings.

    Settings may be text, as from `--set learning_rate=0.01`; they are read by the field's type.

    Raises:
        UsageError: an unknown variant, preset or setting, or a value that does not fit; it lists what there is.
        TaskError: the task's class of settings takes none, or has some that JSON cannot hold.
    """
    if variant not in task.variants:
        raise UsageError(f"[{task.name}] expected a variant of {', '.join(task.variants)}; found {variant!r}")
    if preset is not None and preset not in task.presets:
        raise UsageError(f"[{task.name}] expected a preset of {', '.join(task.presets)}; found {preset!r}")
    values = {**(task.presets[preset] if preset else {}), **task.variants[variant]}
    kinds = typing.get_type_hints(task.config)
    names = [f.name for f in dataclasses.fields(task.config)]
    strangers = sorted(values.keys() - set(names))
    if strangers:
        raise UsageError(f"[{task.name}] preset {preset!r} or variant {variant!r}: expected settings of "
                         f"{', '.join(names)}; found {strangers[0]!r}")
    for key, value in (settings or {}).items():
        if key not in names:
            raise UsageError(f"[{task.name}] expected a setting of {', '.join(names)}; found {key!r}")
        values[key] = convert(f"[{task.name}] {key}", value, kinds[key])
    return _configured(task, values)


def _configured(task: Task, values: Mapping[str, Any]) -> Config:
    """The task's own class with some settings; it is written to the run's folder, so JSON must be able to hold it."""
    try:
        cfg = task.config(**values)
        strictjson.dumps(dataclasses.asdict(cfg))
    except (DuolnError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise TaskError(f"task '{task.name}' of {task.owner or type(task).__module__}: config: "
                        f"{type(error).__name__}: {words_of(error)}") from error
    return cfg


def parse_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` texts as a dict.

    Raises:
        UsageError: a text without `=`.
    """
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"[--set] expected KEY=VALUE, found {pair!r}")
        settings[key] = value
    return settings


def convert(what: str, value: Any, kind: Any) -> Any:
    """A setting as its field's type; text is parsed.

    Raises:
        UsageError: it does not fit; the message begins with `what`.
    """
    if typing.get_origin(kind) in (types.UnionType, typing.Union):
        if value is None or value == "none":
            return None
        kind = next(k for k in typing.get_args(kind) if k is not type(None))
    if typing.get_origin(kind) is Literal:
        for option in typing.get_args(kind):
            if value == option or value == str(option):
                return option
        options = ", ".join(map(str, typing.get_args(kind)))
        raise UsageError(f"{what}: expected one of {options}; found {value!r}")
    if kind is bool:
        if isinstance(value, bool) or value in ("true", "false"):
            return value in (True, "true")
        raise UsageError(f"{what}: expected true or false, found {value!r}")
    if kind not in (int, float, str):
        raise UsageError(f"{what}: settings of type {kind} cannot be set from outside")
    try:
        converted = kind(value)
    except (TypeError, ValueError, OverflowError):
        raise UsageError(f"{what}: expected {kind.__name__}, found {value!r}") from None
    # A bool where a number is asked for, NaN, or a fraction where a whole number is, is not what was meant.
    is_nan = kind is float and math.isnan(converted)
    if isinstance(value, bool) or is_nan or (isinstance(value, float) and converted != value):
        raise UsageError(f"{what}: expected {kind.__name__}, found {value!r}")
    return converted
