"""Flickr8k: its captions and its official split, for those of its photographs that are there; and its captions alone.

In the latter a picture's features are made of its captions 0 and 1, and it has captions 2 to 4. Nothing of a picture is
in them. Retrieval with them says how well one caption finds others of the same picture.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoln.data import read_lines, read_npz
from duoln.data.files import packed_or_not
from duoln.data.npz import Expected
from duoln.errors import DataEntryError, DataFormatError
from duoln.plugins.order_embeddings.corpus import CAPTIONS, SPLITS, Corpus, Features, Part, Sentences, Words
from duoln.tasks import Dataset

FOLDER = Path("captions")
CAPTION_FILE = "Flickr8k.token.txt.gz"
LIST_FILES = {"train": "Flickr_8k.trainImages.txt.gz", "dev": "Flickr_8k.devImages.txt.gz",
              "test": "Flickr_8k.testImages.txt.gz"}
PHOTOGRAPH_FILE = "flickr8k_images_32px.npz"
_LINE = re.compile(r"(?P<image>[^\s#]+)#(?P<number>[0-4])\t(?P<text>.*)")
_MAX_BYTES = 1 << 24
"""The largest size of the captions, which have 3.4 million bytes, and of a list, which has 155,000."""
_MOST_PHOTOGRAPHS, _LARGEST = 1 << 15, 128
"""Photographs (Flickr8k has 8,091), and their rows and columns: what the extractor makes of a photograph takes 1,000
times the memory of its pixels."""
_SHOWN = 60


FILES = tuple(f"{FOLDER}/{file}" for file in (CAPTION_FILE, *LIST_FILES.values(), PHOTOGRAPH_FILE))


class Pictures(NamedTuple):
    """The photographs of a split with their captions."""

    images: np.ndarray
    """uint8 (images, rows, columns, 3)."""
    captions: list[list[str]]
    """Five for each image, image by image."""


def path_in(root: Path) -> Path:
    """The captions below a data folder."""
    return root / FOLDER / CAPTION_FILE


def read(root: Path) -> dict[str, Pictures]:
    """The photographs and captions of each split, in the order of the official lists.

    Captions of images that have no photograph, or are in no list, are left out: the corpus has 93 names that are in
    no list, and the photographs are an eighth of it.

    Raises:
        DataError: a file is missing or cannot be read.
        DataFormatError: it is damaged; an image of a list, or a photograph, has no captions; a photograph of a list
            has not all five. The message names file and line.
    """
    folder = root / FOLDER
    caption_file, *lists = (packed_or_not(folder / name) or folder / name
                            for name in (CAPTION_FILE, *LIST_FILES.values()))
    captions = read_captions(caption_file)
    photographs = read_photographs(folder / PHOTOGRAPH_FILE, captions)
    parts = {}
    for split, file in zip(LIST_FILES, lists, strict=True):
        chosen, sentences = [], []
        for number, name in enumerate(read_list(file), start=1):
            of_image = captions.get(name)
            if of_image is None:
                raise DataEntryError(file, f"line {number}", "an image that has captions", name)
            if name not in photographs:
                continue
            if len(of_image) != CAPTIONS:
                raise DataEntryError(caption_file, name, f"captions #0 to #{CAPTIONS - 1}",
                                     " ".join(f"#{k}" for k in sorted(of_image)))
            chosen.append(photographs[name])
            sentences += [of_image[k] for k in range(CAPTIONS)]
        if not chosen:
            raise DataFormatError(file, 0, f"images with photographs in {PHOTOGRAPH_FILE}", "none")
        parts[split] = Pictures(np.stack(chosen), sentences)
    return parts


def read_captions(path: Path) -> dict[str, dict[int, list[str]]]:
    """The captions of each image by their numbers, 0 to 4: lower-case words, without punctuation.

    Raises:
        DataError: the file is missing or cannot be read.
        DataFormatError: a line that is not NAME#NUMBER, a tab and a caption with a word in it; two captions of one
            number; another encoding than UTF-8. The message names the line.
    """
    captions: dict[str, dict[int, list[str]]] = {}
    for number, line in read_lines(path, _MAX_BYTES, _MAX_BYTES):
        match = _LINE.fullmatch(line)
        if match is None:
            raise DataEntryError(path, f"line {number}", "NAME#NUMBER (0 to 4), a tab and a caption",
                                 repr(line[:_SHOWN]))
        words = words_of(match["text"])
        if not words:
            raise DataEntryError(path, f"line {number}", "a caption with a word in it", repr(match["text"][:_SHOWN]))
        of_image = captions.setdefault(match["image"], {})
        if int(match["number"]) in of_image:
            raise DataEntryError(path, f"line {number}", "a caption of a new number",
                                 f"{match['image']}#{match['number']} again")
        of_image[int(match["number"])] = words
    return captions


def words_of(caption: str) -> list[str]:
    """The words of a caption, lower-cased; what has neither a letter nor a digit is no word."""
    return [word.lower() for word in caption.split() if any(c.isalnum() for c in word)]


def read_list(path: Path) -> list[str]:
    """The image names of a list, one a line.

    Raises:
        DataError: the file is missing or cannot be read.
        DataFormatError: an empty line, a name with white space, a name twice. The message names the line.
    """
    lines: dict[str, int] = {}
    for number, line in read_lines(path, _MAX_BYTES, _MAX_BYTES):
        name = line.rstrip()
        if not name or len(name.split()) != 1:
            raise DataEntryError(path, f"line {number}", "the name of an image", repr(line[:_SHOWN]))
        if name in lines:
            raise DataEntryError(path, f"line {number}", "a name once", f"{name}, as in line {lines[name]}")
        lines[name] = number
    return list(lines)


def read_photographs(path: Path, captions: dict[str, dict[int, list[str]]]) -> dict[str, np.ndarray]:
    """The photographs by name.

    Raises:
        DataError: the file is missing or cannot be read.
        DataFormatError: it is damaged, holds no colour images, a name twice, or a photograph without captions.
    """
    arrays = read_npz(path, {"images": Expected("u1", 4, "images"), "name": Expected("U", 1, "images")})
    images, names = arrays["images"], arrays["name"]
    rows, columns, channels = images.shape[1:]
    if channels != 3 or not 8 <= min(rows, columns) <= max(rows, columns) <= _LARGEST or not len(images):
        raise DataFormatError(f"{path}: images", 0, "shape (images, rows, columns, 3), 8 x 8 or more, "
                              f"{_LARGEST} x {_LARGEST} or less", images.shape)
    if len(images) > _MOST_PHOTOGRAPHS:
        raise DataFormatError(f"{path}: images", 0, f"at most {_MOST_PHOTOGRAPHS} images", len(images))
    photographs: dict[str, np.ndarray] = {}
    for k, (name, image) in enumerate(zip(names.tolist(), images, strict=True)):
        if name in photographs:
            raise DataEntryError(path, f"name[{k}]", "a name once", f"{name} again")
        if name not in captions:
            raise DataEntryError(path, f"name[{k}]", f"an image that has captions in {CAPTION_FILE}", name)
        photographs[name] = image
    return photographs


# Captions alone ------------------------------------------------------------------------------------------

FEATURE_FILE = "flickr8k_heldout_features.npz"
CAPTIONS_LEFT = 3
"""The number of captions of each picture that its features do not know."""
_ARRAYS = {"features": Expected("f2", 2, "pictures"), "split": Expected("U", 1, "pictures"),
           "captions": Expected("U", 2, "pictures")}
FEATURE_FILES = (f"{FOLDER}/{FEATURE_FILE}",)


def features_in(root: Path) -> Path:
    """The file of features below a data folder."""
    return root / FOLDER / FEATURE_FILE


def read_features(root: Path, width: int) -> Corpus:
    """The corpus below a data folder.

    Args:
        root: the data folder.
        width: of the features.

    Raises:
        DataError: the file is missing or cannot be read.
        DataFormatError: it is damaged; features of another width; arrays of different lengths; a split of another name
            or without pictures, a caption without a word.
    """
    path = features_in(root)
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
