"""The contract of a task: everything that the author of an experiment writes.

A task brings data, a model, a loss and metrics; duoln brings the training, the runs, the command line and the reports.
A complete one in one file is `duoln.examples.own_task`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from duoln.core import Tensor
from duoln.data import Batch
from duoln.data.batches import count_examples
from duoln.errors import UsageError
from duoln.nn import Module, Params
from duoln.optim import Adam, Optimizer
from duoln.tasks.values import Column, Dataset, Findings, ReferenceCurve, ReferenceTable, Splits, Trained

Predict = Callable[[Batch], np.ndarray]
Peer = tuple[Callable[[Batch], float], dict[str, str]]
PeerBuilder = Callable[[Any, Params], Peer]


def is_of_test(metric: str) -> bool:
    """True for a metric, SPLIT_NAME, of a test set."""
    return metric.startswith("test")


@dataclass(frozen=True)
class Config:
    """Settings that every task has; a task's own config adds to them."""

    seed: int = 0
    """Seed of initial weights, batch order and noise: runs of one seed start alike on every backend."""
    epochs: int = 1
    """Passes over the training data."""
    batch_size: int = 128
    """Examples of each update."""
    learning_rate: float = 1e-3
    """Step size of the optimizer; for a schedule, its first value."""
    evaluate_every: int = 0
    """Updates between evaluations; 0 is once an epoch."""
    patience: int = 0
    """Training ends after this many evaluations in a row that are not better than the best one, by the task's
    selection; the result is the best model. 0 trains for all epochs, and the result is the last model."""


class Task:
    """An experiment. Subclass it, fill in the names and override the methods.

    Attributes:
        name: what one types.
        title: what one reads.
        paper: where the paper has it, such as "section 6.6, figure 6"; empty for a task that is of no paper.
        config: a frozen dataclass that extends `Config`. A setting has a default, and is of int, float, bool, str,
            None, a Literal, or of tuples, lists and unions of these.
        presets: overrides of the config by name: "paper" to the letter, "small" in minutes on a laptop,
            "smoke" in seconds on made data.
        variants: what is compared, one or more, each with its overrides, such as `{"ln": {"norm": "layer"}}`.
        references: what is shown beside the figures of a variant: the paper's claim, with where it stands, or for a
            task that is of no paper any text.
        columns: the metrics to show, in order.
        selection: which metric says that a checkpoint is the best so far, and whether the "lowest" or the "highest"
            is. By default the first column that is of no test set: the highest, if a word of its name is that of a
            figure that should grow, such as accuracy, f1 or recall; the lowest, if one is that of a figure that should
            fall, such as loss, error or nll. With `patience` any other name is refused. No figure of a test set
            selects.
        x_axis: what curves are drawn against: epochs, or updates ("update") with the training loss beside them.
        corpora: for each corpus that it can be trained on, by name, the places of its files below a data folder, such
            as "mnist/t10k-labels-idx1-ubyte.gz": one or more sets of files, each of which is the whole corpus. `duoln
            list` says which are there; a task that only makes its data has none.
        batch_axes: along which axis of an array of a training batch the examples stand; 0 where an array is not named,
            None for one that is no row of examples. `duoln run --ranks` shares batches out along it.
        sampling: for a generative task, a frozen dataclass whose fields are the options of `duoln sample RUN`,
            each made by `option`.
        sample_name: the file that `duoln sample RUN` writes into RUN where the user names none; its ending says which
            kind of file `sample` writes.
        evaluating: for a task whose trained models are judged by a protocol that takes longer than an evaluation during
            training, the same for `duoln evaluate RUN`.
        peers: for each name that `duoln bench train --peer` may give, the keyword arguments of `build` in the module
            `peer_torch` of the task's own package; `peer_LIBRARY` for a name that begins with another library's.
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
    x_axis: ClassVar[Literal["epoch", "update"]] = "epoch"
    corpora: ClassVar[Mapping[str, Sequence[Sequence[str]]]] = {}
    batch_axes: ClassVar[Mapping[str, int | None]] = {}
    sampling: ClassVar[type | None] = None
    sample_name: ClassVar[str] = "sample.svg"
    evaluating: ClassVar[type | None] = None
    peers: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def data(self, cfg: Any, root: Path | None = None) -> Splits:
        """The data; `root` stands before DUOLN_DATA. Indices are range-checked here, on the host."""
        raise UsageError(f"[{self.name}] the task defines no data")

    def model(self, cfg: Any) -> Module:
        """The model of a configuration."""
        raise UsageError(f"[{self.name}] the task defines no model")

    def loss(self, model: Any, params: Params, batch: dict[str, Tensor]) -> Tensor:
        """The training loss of a batch: a scalar tensor. `model` puts the settings that it needs into the model."""
        raise UsageError(f"[{self.name}] the task defines no loss")

    def loss_weight(self, batch: Batch) -> float:
        """The weight of a batch's loss in the loss of a larger batch of which it is a part.

        By default the number of examples, because a loss is a mean over them. A mean over real tokens gives their
        number, such as `batch["mask"].sum()`; a sum gives 1. `duoln run --ranks` adds the gradients of a batch's parts.
        """
        return count_examples(batch, self.batch_axes)

    def predict(self, model: Any, params: Params, batch: dict[str, Tensor]) -> Tensor:
        """The values of which `metrics` is made; by default the model on `batch["x"]`."""
        result: Tensor = model(params, batch["x"])
        return result

    def population(self, model: Any, params: Params, batch: dict[str, Tensor]) -> Tensor:
        """A pass over a training batch from which batch norm gathers a population's statistics; by default the loss.

        A task that disturbs its training batches on purpose passes them undisturbed here. Dropout, for example, makes
        the variance larger, and an evaluation divides by that variance although it uses no dropout.
        """
        return self.loss(model, params, batch)

    def metrics(self, predict: Predict, split: Batch) -> dict[str, float]:
        """Figures of one split; `predict` takes a batch of NumPy arrays and gives a NumPy array."""
        raise UsageError(f"[{self.name}] the task defines no metrics")

    def layer_inputs(self, model: Any, params: Params, batch: dict[str, Tensor]) -> dict[str, np.ndarray]:
        """The inputs of layers of the model for a training batch, by the layers' names, for `duoln analyze shift`.

        Without padding and dropout.

        Shape:
            -> arrays of floats (rows, units).
        """
        raise UsageError(f"[{self.name}] the task does not tell what its layers get")

    def optimizer(self, cfg: Any, updates: int) -> Optimizer:
        """The optimizer; Adam by default. `updates` is the number of updates of the whole run, for a schedule."""
        return Adam(learning_rate=cfg.learning_rate)

    def reference_curves(self) -> Sequence[ReferenceCurve]:
        """The paper's curves, where their values could be read off; for `duoln report`."""
        return ()

    def reference_tables(self) -> Sequence[ReferenceTable]:
        """The paper's tables; for `duoln paper`."""
        return ()

    def sample(self, trained: Trained, options: Any, out: Path) -> list[Path]:
        """Write samples of a trained model to `out`, and return the written files.

        Args:
            trained: the model.
            options: an instance of `sampling`.
            out: the file to write; others may stand beside it.
        """
        raise UsageError(f"[{self.name}] the task has nothing to sample")

    def evaluate(self, trained: Trained, options: Any, say: Callable[[str], None]) -> Findings:
        """Evaluate a trained model by the task's own protocol.

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
        batch to its loss, and facts about the library. By default it is the `build` that `peers` declares.

        Raises:
            UsageError: no peer of that name.
        """
        if not self.peers:
            raise UsageError(f"[{self.name}] expected a peer that the task has, found {name!r}; it has none")
        if name not in self.peers:
            raise UsageError(f"[{self.name}] expected a peer of {', '.join(self.peers)}; found {name!r}")
        declaring = next(kind for kind in type(self).__mro__ if "peers" in vars(kind))  # a subclass may be elsewhere
        package, dot, _ = declaring.__module__.rpartition(".")
        library = name.partition("-")[0]
        build: PeerBuilder = importlib.import_module(f"{package}{dot}peer_{library}").build
        options = self.peers[name]
        return partial(build, **options) if options else build


_HIGHER = frozenset((
    "accuracy", "acc", "top1", "top5", "correct", "precision", "recall", "f1", "auc", "auroc", "ap", "map", "mrr",
    "ndcg", "iou", "dice", "bleu", "rouge", "meteor", "cider", "r2", "correlation", "pearson", "spearman", "rho",
    "likelihood", "elbo", "psnr", "ssim", "hits", "reward"))
_LOWER = frozenset((
    "loss", "error", "errors", "err", "nll", "nats", "bits", "bpc", "perplexity", "ppl", "mse", "rmse", "mae", "cost",
    "cer", "wer", "distance", "regret", "negative", "neg", "fid"))
"""The words in the names of metrics that say which values are the better ones."""


def better(metric: str) -> Literal["lowest", "highest"] | None:
    """Which values of a metric are the better ones, as the words of its name say; None if they do not."""
    words = set(metric.lower().split("_"))
    higher, lower = bool(words & _HIGHER), bool(words & _LOWER)
    return None if higher == lower else "highest" if higher else "lowest"


def selected_by(task: Task, cfg: Config) -> tuple[str, Literal["lowest", "highest"]] | None:
    """`selection`, or its default; None for a task that has neither and needs none.

    Raises:
        UsageError: it is a figure of a test set; or `patience` needs one, and all columns are of test sets, or the name
            of the first one does not say which values are the better ones.
    """
    if task.selection is not None and not is_of_test(task.selection[0]):
        return task.selection
    first = next((column.key for column in task.columns if not is_of_test(column.key)), None)
    if task.selection is not None or (first is None and cfg.patience):
        name = "none" if task.selection is None else task.selection[0]
        raise UsageError(f"[{task.name}] selection: expected a metric of another set than test, found {name}: the best "
                         "of many figures of a test set says nothing about new data")
    which = None if first is None else better(first)
    if first is not None and which is None and cfg.patience:
        raise UsageError(f"[{task.name}] selection: expected (metric, \"lowest\" or \"highest\"), found none; the name "
                         f"of the first column, {first!r}, does not say which values are the better ones")
    return None if first is None or which is None else (first, which)


def claims_of(task: Task, dataset: Dataset) -> Mapping[str, str]:
    """`references`, but none of a paper beside runs on made data, of which it says nothing."""
    return {} if task.paper and dataset.provenance == "synthetic" else task.references
