"""Synthetic books and test sets, so that everything runs without a corpus.

A book has a few topics, one after another. A sentence has words of its topic, and a topic lasts for some sentences, so
that a sentence contains information about its neighbours.
"""

from __future__ import annotations

from typing import NamedTuple

from duoln import Stream

_GOOD, _BAD = ("kind", "merry", "bright", "gentle"), ("cruel", "dull", "gloomy", "rude")
_TOPICS = {
    "sea": (("ship", "boat", "captain", "sailor", "wave"), ("sailed", "sank", "rocked", "drifted"),
            ("deep", "salt", "grey", *_GOOD, *_BAD)),
    "garden": (("rose", "spade", "gardener", "robin", "tree"), ("grew", "bloomed", "slept", "sang"),
               ("green", "sweet", "old", *_GOOD, *_BAD)),
    "town": (("street", "clerk", "carriage", "shop", "house"), ("stood", "opened", "waited", "closed"),
             ("loud", "busy", "dusty", *_GOOD, *_BAD)),
}
"""The nouns, verbs and adjectives of each topic."""
_STAY = 0.9
"""The chance that the next sentence has the same topic."""


class Pair(NamedTuple):
    """Two sentences, and how closely they are related, from 1 to 5."""

    first: str
    second: str
    score: float


def _pick(rng: Stream, words: tuple[str, ...]) -> str:
    return words[int(rng.integers(len(words), (1,))[0])]


def _sentence(rng: Stream, topic: str, adjectives: tuple[str, ...] = ()) -> str:
    nouns, verbs, own = _TOPICS[topic]
    parts = ["the"]
    if float(rng.uniform((1,))[0]) < 0.6 or adjectives:
        parts.append(_pick(rng, adjectives or own))
    parts += [_pick(rng, nouns), _pick(rng, verbs)]
    if float(rng.uniform((1,))[0]) < 0.5:
        parts += ["by", "the", _pick(rng, nouns)]
    return " ".join(parts)


def make_books(seed: int, books: int = 4, sentences: int = 120) -> list[list[str]]:
    """Books of so many sentences, in paragraphs of six. The same for the same seed."""
    made = []
    for k in range(books):
        rng = Stream(seed, "skip_thoughts.books", step=k)
        topic, lines = "sea", []
        for _ in range(sentences):
            if float(rng.uniform((1,))[0]) > _STAY:
                topic = _pick(rng, tuple(_TOPICS))
            lines.append(_sentence(rng, topic).capitalize() + ".")
        made.append([" ".join(lines[i:i + 6]) for i in range(0, sentences, 6)])
    return made


def make_labelled(seed: int, name: str, count: int = 160) -> list[tuple[str, int]]:
    """Sentences that speak well (1) or ill (0) of something."""
    rng = Stream(seed, f"skip_thoughts.{name}")
    return [(_sentence(rng, _pick(rng, tuple(_TOPICS)), _GOOD if k % 2 else _BAD), k % 2) for k in range(count)]


def make_pairs(seed: int, part: str, count: int = 24) -> list[Pair]:
    """Pairs that share a topic or a sentence, or neither."""
    rng = Stream(seed, f"skip_thoughts.pairs.{part}")
    pairs = []
    for k in range(count):
        first, second = _pick(rng, tuple(_TOPICS)), _pick(rng, tuple(_TOPICS))
        one = _sentence(rng, first)
        second_sentence = one if k % 4 == 0 else _sentence(rng, first if k % 2 else second)
        noise = float(rng.uniform((1,), 0.0, 0.5)[0])
        base = 5.0 if one == second_sentence else 3.0 if k % 2 or first == second else 1.0
        pairs.append(Pair(one, second_sentence, min(max(base + noise - 0.25, 1.0), 5.0)))
    return pairs
