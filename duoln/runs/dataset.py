"""The dataset of a run, as the files of the run name it."""

from __future__ import annotations

from typing import Any

from duoln.errors import DataFormatError
from duoln.tasks.values import Dataset


def read_dataset(where: object, value: Any) -> Dataset:
    """The dataset that a file of a run names. Earlier versions wrote the key `rung` in place of `provenance`.

    Args:
        where: the file and the entry, for errors.
        value: the JSON value under the key `dataset`.

    Raises:
        DataFormatError: the value is not an object of the two texts.
    """
    fields = value
    if isinstance(value, dict) and "provenance" not in value and "rung" in value:
        fields = {"provenance" if key == "rung" else key: text for key, text in value.items()}
    if not isinstance(fields, dict) or fields.keys() != set(Dataset._fields) or not all(
            isinstance(text, str) for text in fields.values()):
        raise DataFormatError(where, 0, f"an object of the texts {', '.join(Dataset._fields)} as dataset",
                              f"{value!r:.60}")
    return Dataset(**fields)
