"""The facts beside its settings that decide the bits of a run, as texts by name: rules, libraries, code, data, ranks.

Two runs of equal settings and equal identity have the same bits. The seed is a setting that decides the batches; all
other parts are the same for every seed. The fingerprints of data and batches do not see every value: of the training
data they have some batches of the first epoch, of a large array some of its rows. A change that touches none of these,
such as one label in thousands, is not noticed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import duoln
from duoln import runtime, tree
from duoln.backends.protocol import SET_ASIDE, Backend
from duoln.core import Op, Rule
from duoln.core.op import each_rule, is_composed_only, packages
from duoln.errors import CheckpointError, DataFormatError
from duoln.nn import no_dropout
from duoln.runs.checkpoint import Checkpoint
from duoln.runs.code import digest_of, files_of, fingerprint_of, texts_below
from duoln.tasks.events import Change
from duoln.tasks.registry import package_of
from duoln.tasks.task import Task
from duoln.tasks.values import Splits

Identity = dict[str, str]

_OF_BACKEND = ("library", "blas_core", "blas_threads", "tf32", "compute_capability", "driver", "compiled_steps")
"""Parts of a backend's description of itself. The name of a GPU is among them too."""
_REMEDIES = {"blas_threads": "OPENBLAS_NUM_THREADS", "blas_core": "OPENBLAS_CORETYPE"}
"""The variables that set a value before duoln starts."""
_FILES = "files"
"""The part that tells which files of a task's code have changed; it decides nothing that "task" does not."""
_BATCHES = 4
_MOST_VALUES = 1 << 16
"""The most bytes of an array; a larger one is sampled."""


def identity_of(backend: Backend, task: Task, splits: Splits, ranks: int = 1) -> Identity:
    """The facts beside its settings that decide the bits of a run.

    Args:
        backend: on which it computes.
        task: of which the code is part of the identity.
        splits: its data.
        ranks: how many processes train the model together.
    """
    facts = backend.info()
    of_numpy = {"simd": _simd()} if backend.name == "numpy" else {"device": backend.device}
    return {"backend": backend.name, **{key: facts[key] for key in _OF_BACKEND if key in facts}, **of_numpy,
            "rules": rules_of(backend), "code": f"{duoln.__version__} ({_code()})",
            "task": f"{type(task).__qualname__} ({fingerprint_of(type(task))})",
            _FILES: files_of(type(task)), "data": fingerprint(splits),
            "batches": batches_of(splits), "ranks": str(ranks)}


def differences(update: int, was: Mapping[str, str], now: Mapping[str, str]) -> list[Change]:
    """The parts in which two identities differ; what one of them lacks is "none" there."""
    differing = [key for key in dict.fromkeys((*was, *now)) if was.get(key) != now.get(key)]
    if "data" in differing:  # other data have other batches
        differing = [key for key in differing if key != "batches"]
    changes = [Change(update, key, was.get(key, "none"), now.get(key, "none")) for key in differing if key != _FILES]
    files = _changed_files(was.get(_FILES, ""), now.get(_FILES, ""))
    return [change._replace(now=f"{change.now}: {files}") if change.key == "task" and files else change
            for change in changes]


def _changed_files(was: str, now: str) -> str:
    """In words, the files of a task's code that differ; empty where they are not known."""
    if not was or not now:
        return ""
    before, after = (dict(entry.rsplit(" ", 1) for entry in text.split(", ")) for text in (was, now))
    told = [f"{name} {'is gone' if name not in after else 'is new' if name not in before else 'has changed'}"
            for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    return ", ".join(told)


def changes_since(saved: Checkpoint, now: Mapping[str, str]) -> list[Change]:
    """The parts of the identity that were others when a checkpoint was written. A start has none: no update was made.

    Args:
        saved: the checkpoint.
        now: the identity of the run that goes on from it.
    """
    return differences(saved.update, saved.notes.get("identity", {}), now) if saved.update else []


def check_unchanged(path: Path, changes: Sequence[Change]) -> None:
    """Refuse to go on from a checkpoint with another identity: the rest would not be that of the same run.

    Raises:
        CheckpointError: there are changes; the message has both values of each, and what to set.
    """
    if not changes:
        return
    of = {change.key: change for change in changes}
    if "backend" in of:  # everything else that a backend says differs too
        changes = [of["backend"]]
    told = "; ".join(f"expected {change.key} {change.was}, found {change.now}" for change in changes)
    remedies = [f"{_REMEDIES[change.key]}={change.was}" for change in changes if change.key in _REMEDIES]
    begin = f"Set {' '.join(remedies)}, or go" if remedies and "library" not in of else "Go"
    if "backend" in of:
        told, begin = f"{told}: it was made with --backend {of['backend'].was}", "Name that backend, or go"
    raise CheckpointError(f"{path}: {told}. The rest of the run would have other bits. {begin} on with --resume anyway "
                          '(resume="anyway" in Python); every table then says so')


def read_changes(where: object, value: Any) -> list[Change]:
    """The changes of identity that a file of a run holds; None are none.

    Args:
        where: the file and the entry, for errors.
        value: the JSON value.

    Raises:
        DataFormatError: it is no list of changes.
    """
    entries = [] if value is None else value
    if not isinstance(entries, list) or not all(
            isinstance(entry, dict) and entry.keys() == set(Change._fields) and type(entry["update"]) is int
            and all(isinstance(entry[key], str) for key in ("key", "was", "now")) for entry in entries):
        raise DataFormatError(where, 0, f"a list of objects of {', '.join(Change._fields)} as changes",
                              f"{value!r:.60}")
    return [Change(**entry) for entry in entries]


def rules_of_packages(run: Callable[[], object]) -> Identity:
    """The rules of other packages' operators that a call uses, each with its package and a hash of its code.

    Args:
        run: computes the loss of a batch; it is called if another package has made operators.
    """
    used: dict[str, str] = {}

    def note(op: Op[..., Any], rule: Rule) -> Rule:
        if not op.is_own:
            codes = dict.fromkeys((fingerprint_of(op.function), fingerprint_of(rule.forward)))
            used[op.name] = f"{op.name} by {rule.name}, of {package_of(op.__module__)} ({', '.join(codes)})"
        return rule

    if packages:
        with each_rule(note), no_dropout(), contextlib.suppress(Exception):  # the first update raises it too
            run()
    return {"operators": "; ".join(used[name] for name in sorted(used))} if used else {}


def _simd() -> str:
    """The vectors that NumPy found in this CPU: they decide the bits of its functions."""
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    return " ".join(extensions.get("found", ())) or "none"


def rules_of(backend: Backend) -> str:
    """Which rules run: on NumPy by what they were compiled, on a GPU which were set aside."""
    if is_composed_only():
        return "composed"
    if backend.proofs is not None:
        aside = sorted(" ".join(filter(None, (v["op"], v["variant"], v["rule"], v["stored"])))
                       for v in backend.proofs.kept() if v["state"] == SET_ASIDE)
        return "fused" + (f", set aside: {', '.join(aside)}" if aside else "")
    if backend.name != "numpy":
        return "fused"
    facts = runtime.native_facts()
    if facts["rules"] != "compiled":
        return "interpreted"
    absent = f", interpreted: {', '.join(sorted(facts['absent']))}" if facts["absent"] else ""
    return f"compiled by {facts['compiler']}, vectors of {facts['vector_bits']} bits{absent}"


@cache
def _code() -> str:
    """A hash of the package's files that take part in training."""
    return digest_of(texts_below(Path(duoln.__file__).parent, *runtime.kernel_folders()))


def fingerprint(splits: Splits) -> str:
    """The identity of the data, for every seed: name, updates an epoch, and a hash of the splits that are held out."""
    held_out = [(name, arrays) for name, arrays in splits.evaluation.items() if name != "train"]
    return f"{splits.dataset.label}, {splits.steps_per_epoch} updates an epoch ({digest_of(_pieces(held_out))})"


def batches_of(splits: Splits) -> str:
    """A hash of some batches of the first epoch and of the split "train", in which the seed may choose."""
    updates = sorted({splits.steps_per_epoch * k // _BATCHES for k in range(_BATCHES)})
    train = [(name, arrays) for name, arrays in splits.evaluation.items() if name == "train"]
    pieces = _pieces([*((f"update {update}", splits.train(update)) for update in updates), *train])
    return f"of the training data ({digest_of(pieces)})"


def _pieces(parts: Iterable[tuple[str, Mapping[str, np.ndarray]]]) -> Iterator[bytes]:
    for name, arrays in parts:
        for path, array in tree.items(dict(arrays)):
            yield f"{name} {path} {array.dtype} {array.shape}".encode()
            yield _sample(array)


def _sample(array: np.ndarray) -> bytes:
    """The values of an array; of a large one those of some rows."""
    for axis in range(array.ndim):
        step = -(-array.size // _MOST_VALUES)
        array = array[(slice(None),) * axis + (slice(None, None, max(step, 1)),)]
    return array.tobytes()
