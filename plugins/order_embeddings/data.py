"""Images and captions as batches: a random caption of each image, padded to few lengths; synthetic pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from duoln import Stream
from duoln.data import Batch
from duoln.data.text import describe_unknown
from duoln.errors import UsageError
from duoln.plugins.order_embeddings import coco, extractor, flickr8k
from duoln.plugins.order_embeddings.corpus import (
    CAPTIONS,
    END,
    SPLITS,
    UNKNOWN,
    Corpus,
    Features,
    Part,
    Sentences,
    Words,
    in_vocabulary,
)
from duoln.plugins.order_embeddings.flickr8k import Pictures
from duoln.tasks import Dataset, Splits
from duoln.tasks.originals import DATA_SEED, blame_missing_data, first_there, original_or_made

Source = Literal["auto", "coco", "flickr8k", "flickr8k-captions", "made"]

PLACES: dict[str, tuple[str, ...]] = {"coco": coco.FILES, "flickr8k": flickr8k.FILES,
                                     "flickr8k-captions": flickr8k.FEATURE_FILES}
"""The files of each corpus below a data folder."""
AUTO = ("coco", "flickr8k")
MADE = {"train": 96, "dev": 24, "test": 24}
_LENGTHS = (8, 12, 16, 20, 24, 32, 48, 64)
"""Steps of a batch: every batch is padded to one of these, so that few shapes are compiled."""
_LONG = 64
_SENTENCES = 256
"""The sentences of a batch of the evaluation."""
_FOLD_IMAGES = 1_000


def splits(cfg: Any, root: Path | None) -> Splits:
    """Training batches, and dev and test for evaluation.

    As in the authors' code an epoch's last batch is dropped, even a full one that takes the last image.

    Raises:
        as `original_or_made`. UsageError: more words than the table has rows, or a batch larger than the data.
    """
    batch_size, size = cfg.batch_size, cfg.image_size
    corpus, why = original_or_made(cfg.source, partial(_find, cfg.source, size, root), partial(_synthetic_corpus, size))
    with blame_missing_data(cfg.source, why):
        parts = in_vocabulary(corpus, cfg.vocabulary)
        images = len(parts["train"].features)
        steps = -(-images // batch_size) - 1
        if batch_size < 2 or steps < 1:
            raise UsageError(f"[order_embeddings] expected a batch_size from 2 to below {images}, the number of "
                             f"training images, found {batch_size}")
    unknown = describe_unknown(corpus.source, {name: float(np.mean(parts[name].captions.flat == UNKNOWN))
                                               for name in SPLITS})
    whole = {name: {"flat": part.captions.flat, "offsets": part.captions.offsets,
                    "features": part.features.rows(np.arange(len(part.features)))}
             for name, part in parts.items() if name != "train"}
    return Splits(corpus.dataset, _batches(parts["train"], batch_size, cfg.seed, steps), steps, whole, (why, unknown))


def _batches(part: Part, batch_size: int, seed: int, steps: int) -> Callable[[int], Batch]:
    """The batch of a step: each epoch visits every image once at most, with one of its captions at random."""
    images, each = len(part.features), part.captions_each

    @lru_cache(maxsize=1)
    def order(epoch: int) -> tuple[np.ndarray, np.ndarray]:
        return (Stream(seed, "batches", epoch).permutation(images),
                Stream(seed, "captions", epoch).integers(each, (images,)))

    def batch(step: int) -> Batch:
        epoch, place = divmod(step, steps)
        permutation, which = order(epoch)
        chosen = permutation[place * batch_size:(place + 1) * batch_size]
        return {**pad(part.captions, each * chosen + which[chosen]), "features": part.features.rows(chosen)}

    return batch


def padded_length(longest: int) -> int:
    """The number of steps of a batch whose longest sentence has so many, its end counted."""
    return next((n for n in _LENGTHS if n >= longest), -(-longest // _LONG) * _LONG)


def pad(sentences: Sentences, chosen: np.ndarray) -> Batch:
    """Some sentences side by side, each with a further step of id 0 at its end, which the mask covers.

    Shape:
        ids int32 (steps, sentences), mask bool of the same shape: True up to the end's step.
    """
    lengths = sentences.offsets[chosen + 1] - sentences.offsets[chosen] + 1
    steps = padded_length(int(lengths.max()))
    ids = np.full((steps, len(chosen)), END, np.int32)
    for column, i in enumerate(chosen):
        ids[:lengths[column] - 1, column] = sentences[i]
    return {"ids": ids, "mask": np.arange(steps)[:, None] < lengths}


def folds(split: Batch) -> Iterator[tuple[Sentences, np.ndarray]]:
    """The captions and image features of each 1,000 images of a split; what is left over belongs to no fold."""
    whole, features = Sentences(split["flat"], split["offsets"]), split["features"]
    size, each = min(_FOLD_IMAGES, len(features)), len(whole) // len(features)
    for first in range(0, len(features) - size + 1, size):
        offsets = whole.offsets[each * first:each * (first + size) + 1]
        yield (Sentences(whole.flat[offsets[0]:offsets[-1]], offsets - offsets[0]), features[first:first + size])


def in_batches(sentences: Sentences) -> Iterator[tuple[np.ndarray, Batch]]:
    """All sentences, those of a length together: their numbers, and a batch of `ids` and `mask`."""
    order = np.argsort(np.diff(sentences.offsets), kind="stable")
    for i in range(0, len(order), _SENTENCES):
        yield order[i:i + _SENTENCES], pad(sentences, order[i:i + _SENTENCES])


# Corpora ------------------------------------------------------------------------------------------------

def _find(source: Source, image_size: int, root: Path | None) -> Callable[[], Corpus]:
    """The function that reads the corpus of a source; "auto" is the first that is there."""
    readers: dict[str, Callable[[Path], Corpus]] = {
        "coco": partial(coco.read, width=image_size), "flickr8k": partial(_photographs, image_size=image_size),
        "flickr8k-captions": partial(flickr8k.read_features, width=image_size)}
    first = first_there(PLACES, AUTO if source == "auto" else (source,), root,
                        "COCO's captions and features were given out as "
                        "http://www.cs.toronto.edu/~vendrov/datasets/coco.zip; its README says which files make a "
                        "corpus; --preset small does without")
    return partial(readers[first.name], first.home)


def _synthetic_corpus(image_size: int) -> Corpus:
    pictures = {name: make_pictures(count, DATA_SEED, name) for name, count in MADE.items()}
    return _build_corpus(Dataset("made pictures", "synthetic"), pictures, "made captions", image_size)


def _photographs(home: Path, image_size: int) -> Corpus:
    pictures = flickr8k.read(home)
    count = sum(len(part.images) for part in pictures.values())
    dataset = Dataset(f"Flickr8k, {count:,} photos, {extractor.NAME}", "substitute")
    return _build_corpus(dataset, pictures, flickr8k.path_in(home), image_size)


def _build_corpus(dataset: Dataset, pictures: dict[str, flickr8k.Pictures], source: object, image_size: int,
               ) -> Corpus:
    words = Words()
    sentences = {name: Sentences.of([words.numbers(c) for c in part.captions]) for name, part in pictures.items()}
    images = tuple(part.images for part in pictures.values())
    features = _features(tuple((a.tobytes(), a.shape) for a in images), image_size)
    parts = {name: Part(sentences[name], Features(a, f"{extractor.NAME} features of {name}"))
             for name, a in zip(pictures, features, strict=True)}
    return Corpus(dataset, parts, words.list(), source)


@lru_cache(maxsize=2)  # the variants of a run, and its evaluation, share them
def _features(images: tuple[tuple[bytes, tuple[int, ...]], ...], width: int) -> list[np.ndarray]:
    train, *others = (np.frombuffer(raw, np.uint8).reshape(shape) for raw, shape in images)
    return extractor.extract(train, others, width, DATA_SEED)


_PIXELS = 32
_COLOURS = {"red": (200, 40, 40), "green": (40, 160, 60), "blue": (40, 70, 200), "yellow": (220, 200, 40),
           "white": (230, 230, 230), "black": (20, 20, 20)}
_SHAPES = ("square", "disc", "bar")
_FORMS = ("a {0} {1} left of a {2} {3}", "a {2} {3} right of a {0} {1}", "a {0} {1} and a {2} {3} on {4} ground",
          "on {4} ground there is a {0} {1}", "a {2} {3} on {4}")


def make_pictures(count: int, seed: int, split: str) -> Pictures:
    """The pictures of a split; they are the same for the same seed."""
    rng = Stream(seed, f"order_embeddings.made.{split}")
    images, captions = np.empty((count, _PIXELS, _PIXELS, 3), np.uint8), []
    names = list(_COLOURS)
    for image in images:
        left, right, ground = (names[k] for k in rng.permutation(len(names))[:3])
        shapes = [_SHAPES[int(k)] for k in rng.integers(len(_SHAPES), (2,))]
        image[:] = _COLOURS[ground]
        for column, shape, colour in ((_PIXELS // 4, shapes[0], left), (3 * _PIXELS // 4, shapes[1], right)):
            row = _PIXELS // 4 + int(rng.integers(_PIXELS // 2, ()))
            image[_inside(shape, row, column)] = _COLOURS[colour]
        image[:] = np.clip(image + 8 * rng.gaussian(image.shape), 0, 255)
        words = (left, shapes[0], right, shapes[1], ground)
        captions += [form.format(*words).split() for form in _FORMS[:CAPTIONS]]
    return Pictures(images, captions)


def _inside(shape: str, row: int, column: int) -> np.ndarray:
    down, across = np.ogrid[-row:_PIXELS - row, -column:_PIXELS - column]
    if shape == "disc":
        return np.asarray(down * down + across * across <= 36)
    height, width = (5, 5) if shape == "square" else (2, 7)
    return np.asarray((abs(down) <= height) & (abs(across) <= width))
