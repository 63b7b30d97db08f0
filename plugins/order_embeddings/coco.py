"""Microsoft COCO as Karpathy split it, with features made beforehand: `dataset_coco.json` and three .npy files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from duoln.data import read_json
from duoln.data.npz import Expected, map_npy
from duoln.errors import DataEntryError, DataFormatError
from duoln.plugins.order_embeddings.corpus import CAPTIONS, Corpus, Features, Part, Sentences, Words
from duoln.tasks import Dataset

FOLDER = Path("captions") / "coco"
CAPTION_FILE = "dataset_coco.json"
FEATURE_FOLDER = Path("images") / "10crop"
FEATURE_FILES = {"train": "train.npy", "dev": "val.npy", "test": "test.npy"}
_SPLITS = {"train": "train", "restval": "train", "val": "dev", "test": "test"}
"""Karpathy's names of the splits, and duoln's."""
WHOLE_TRAIN = 113_287
_DEV_IMAGES = 1_000
_MAX_BYTES = 1 << 28
"""The largest size of the captions; Karpathy's file has 145 million bytes."""
_SHOWN = 60


class _Image(NamedTuple):
    split: str
    sentences: list[list[int]]


FILES = (f"{FOLDER}/{CAPTION_FILE}", *(f"{FOLDER / FEATURE_FOLDER}/{file}" for file in FEATURE_FILES.values()))


def path_in(root: Path) -> Path:
    """The captions below a data folder."""
    return root / FOLDER / CAPTION_FILE


def read(root: Path, width: int) -> Corpus:
    """The corpus below a data folder.

    Row k of a split's features belongs to the k-th image of that split in the json file ("restval" counts as
    "train"), as the authors' extractor writes them. Dev is the first 1,000 images of "val".

    Args:
        root: the data folder.
        width: of the features.

    Raises:
        DataError: a file is missing or cannot be read. DataFormatError: it is damaged, or does not fit the other.
    """
    path = path_in(root)
    words = Words()
    images = read_images(path, words)
    parts = {}
    for name, file in FEATURE_FILES.items():
        sentences = [s for image in images if image.split == name for s in image.sentences]
        features = _features(root / FOLDER / FEATURE_FOLDER / file, width, len(sentences) // CAPTIONS, path)
        parts[name] = Part(Sentences.of(sentences), features)
    dev = parts["dev"]
    count = min(_DEV_IMAGES, len(dev.features))
    parts["dev"] = Part(dev.captions.first(CAPTIONS * count), Features(dev.features.values[:count], dev.features.name))
    whole = len(parts["train"].features) >= WHOLE_TRAIN
    dataset = Dataset("COCO", "original") if whole else Dataset(
        f"COCO captions, {len(parts['train'].features):,} images", "substitute")
    return Corpus(dataset, parts, words.list(), path)


def read_images(path: Path, words: Words) -> list[_Image]:
    """The images of a json file, each with its split and the first five of its sentences.

    Raises:
        DataError: the file is missing or cannot be read.
        DataFormatError: no JSON of Karpathy's form, a sentence of another image, an image with fewer than five
            sentences, an empty sentence, two images of one id. The message names the entry.
    """
    whole = read_json(path, _MAX_BYTES, "JSON text")
    entries: Any = whole.get("images") if isinstance(whole, dict) else None
    _expect(isinstance(entries, list) and entries, path, "images", "a list of images", entries)
    seen: dict[Any, int] = {}
    images = []
    for k, entry in enumerate(entries):
        place = f"images[{k}]"
        _expect(isinstance(entry, dict), path, place, "an object", entry)
        name, split, sentences = (entry.get(key) for key in ("imgid", "split", "sentences"))
        _expect(type(name) is int, path, f"{place}.imgid", "a whole number", name)
        if seen.setdefault(name, k) != k:
            raise DataEntryError(path, f"{place}.imgid", "an id of its own", f"{name}, as images[{seen[name]}] has")
        _expect(isinstance(split, str) and split in _SPLITS, path, f"{place}.split", f"one of {', '.join(_SPLITS)}",
                split)
        _expect(isinstance(sentences, list) and len(sentences) >= CAPTIONS, path, f"{place}.sentences",
                f"at least {CAPTIONS} captions of image {name}", sentences)
        images.append(_Image(_SPLITS[split], [words.numbers(_tokens(path, f"{place}.sentences[{i}]", name, sentence))
                                              for i, sentence in enumerate(sentences[:CAPTIONS])]))
    for split in FEATURE_FILES:
        if all(image.split != split for image in images):
            raise DataEntryError(path, "images", f"some of split {split}", "none")
    return images


def _tokens(path: Path, place: str, image: int, sentence: Any) -> list[str]:
    _expect(isinstance(sentence, dict), path, place, "an object", sentence)
    own, tokens = sentence.get("imgid", image), sentence.get("tokens")
    _expect(own == image, path, f"{place}.imgid", f"{image}, the image it stands in", own)
    _expect(isinstance(tokens, list) and tokens and all(isinstance(t, str) and t for t in tokens), path,
            f"{place}.tokens", "a list of words, at least one", tokens)
    words: list[str] = tokens
    return words


def _features(path: Path, width: int, count: int, captions: Path) -> Features:
    values = map_npy(path, Expected("f4", 2))
    if values.shape[1] != width:
        raise DataFormatError(path, 0, f"features of width {width} (the setting image_size)", values.shape[1])
    if len(values) != count:
        lacks = "an image without captions" if len(values) > count else "captions without an image"
        raise DataFormatError(path, 0, f"{count} rows, as {captions.name} has images of that split",
                              f"{len(values)}: {lacks}")
    return Features(values, path)


def _expect(good: Any, path: Path, place: str, expected: str, value: Any) -> None:
    if not good:
        raise DataEntryError(path, place, expected, "nothing" if value is None else f"{value!r:.{_SHOWN}}")
