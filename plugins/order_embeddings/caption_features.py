"""Flickr8k's captions alone: a picture's features are made of its captions 0 and 1, and it has captions 2 to 4.

Nothing of a picture is in them. Retrieval with them says how well one caption finds others of the same picture.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from duoln.data import read_npz
from duoln.data.npz import Expected
from duoln.errors import DataEntryError, DataFormatError
from duoln.plugins.order_embeddings.corpus import SPLITS, Corpus, Features, Part, Sentences, Words
from duoln.plugins.order_embeddings.flickr8k import FOLDER, words_of
from duoln.tasks import Dataset

FILE = "flickr8k_heldout_features.npz"
CAPTIONS_LEFT = 3
"""The number of captions of each picture that its features do not know."""
_ARRAYS = {"features": Expected("f2", 2, "pictures"), "split": Expected("U", 1, "pictures"),
           "captions": Expected("U", 2, "pictures")}
_SHOWN = 60


FILES = (f"{FOLDER}/{FILE}",)


def path_in(root: Path) -> Path:
    """The file below a data folder."""
    return root / FOLDER / FILE


def read(root: Path, width: int) -> Corpus:
    """The corpus below a data folder.

    Args:
        root: the data folder.
        width: of the features.

    Raises:
        DataError: the file is missing or cannot be read.
        DataFormatError: it is damaged; features of another width; arrays of different lengths; a split of another name
            or without pictures, a caption without a word.
    """
    path = path_in(root)
    arrays = read_npz(path, _ARRAYS)
    features, captions = arrays["features"], arrays["captions"]
    if features.shape[1] != width:
        raise DataFormatError(f"{path}: features", 0, f"features of width {width} (the setting image_size)",
                              features.shape[1])
    if captions.shape[1] != CAPTIONS_LEFT:
        raise DataFormatError(f"{path}: captions", 0, f"{CAPTIONS_LEFT} captions a picture", captions.shape[1])
    strange = np.flatnonzero(~np.isin(arrays["split"], SPLITS))
    if len(strange):
        raise DataEntryError(path, f"split[{strange[0]}]", f"one of {', '.join(SPLITS)}",
                             f"{arrays['split'][strange[0]].item()!r:.{_SHOWN}}")
    words = Words()
    parts = {}
    for split in SPLITS:
        rows = np.flatnonzero(arrays["split"] == split)
        if not len(rows):
            raise DataFormatError(f"{path}: split", 0, f"pictures of {split}", "none")
        sentences = [_numbers(path, words, row, captions[row].tolist()) for row in rows.tolist()]
        parts[split] = Part(Sentences.of([s for of_picture in sentences for s in of_picture]),
                            Features(features[rows], f"{path}: features of {split}"))
    return Corpus(Dataset("Flickr8k captions as features", "substitute"), parts, words.list(), path)


def _numbers(path: Path, words: Words, row: int, captions: list[str]) -> list[list[int]]:
    """The words of a picture's captions."""
    numbers = []
    for k, caption in enumerate(captions):
        tokens = words_of(caption)
        if not tokens:
            raise DataEntryError(path, f"captions[{row}, {k}]", "a caption with a word in it",
                                 f"{caption!r:.{_SHOWN}}")
        numbers.append(words.numbers(tokens))
    return numbers
