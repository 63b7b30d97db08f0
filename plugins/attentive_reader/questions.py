"""A `.question` file of Hermann et al. (2015): five parts parted by empty lines.

    line 1   where the passage is from
    line 3   the passage, its names replaced by @entity0, @entity1, ...
    line 5   the question, one name replaced by @placeholder
    line 7   the answer, an @entityN of the passage
    line 9   @entityN:name, a line for each; there may be none
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from duoln.errors import DataFormatError

PLACEHOLDER = "@placeholder"
_ENTITY = re.compile(r"@entity\d+")
_NAMED = re.compile(r"@entity\d+:.*")
_PARTS = ("a source", "a passage", "a question", "an answer", "the names of entities")
_ENDS = frozenset(".!?")
_ASKED = range(6, 41)
"""Words of a sentence that `within` makes a question of."""


class Question(NamedTuple):
    """A passage, a question about it and the answer, as lower-case words."""

    passage: list[str]
    question: list[str]
    answer: str


def is_entity(word: str) -> bool:
    """True for a word of the form @entityN."""
    return _ENTITY.fullmatch(word) is not None


def entity_places(words: Sequence[str]) -> list[int]:
    """The positions of the entities in a text."""
    # Few words begin with the mark; to match all of them would take most of the time of reading.
    return [k for k, word in enumerate(words) if word[:1] == "@" and is_entity(word)]


def parse(file: object, content: bytes) -> Question:
    """The question in a file's content.

    Raises:
        DataFormatError: not UTF-8, another number of parts, an empty passage, no placeholder in the question, an answer
            that is no entity or not in the passage, a name without an entity. The message names file, line and byte.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        number = content[:error.start].count(b"\n") + 1
        raise DataFormatError(f"{file}, line {number}", error.start, "text in UTF-8",
                              f"the byte {content[error.start]:#04x}") from error
    parts = text.split("\n\n", len(_PARTS) - 1)
    starts = [sum(len(part) + 2 for part in parts[:k]) for k in range(len(parts))]

    def wrong(at: int, expected: object, actual: object) -> DataFormatError:
        before = text[:at]
        return DataFormatError(f"{file}, line {before.count(chr(10)) + 1}", len(before.encode()), expected, actual)

    if len(parts) < len(_PARTS):
        raise wrong(len(text), f"5 parts parted by empty lines ({', '.join(_PARTS)})",
                    f"{len(parts) if text.strip() else 0} of them")
    for part, start, what in zip(parts[:4], starts, _PARTS, strict=False):
        if "\n" in part:
            second = part.index("\n") + 1
            raise wrong(start + second, f"{what} on one line", f"a second line, {part[second:]!r:.40}")
    passage, question = parts[1].lower().split(), parts[2].lower().split()
    answer = parts[3].strip().lower()
    if not passage:
        raise wrong(starts[1], "a passage", "an empty one")
    if PLACEHOLDER not in question:
        raise wrong(starts[2], f"a question with {PLACEHOLDER}", f"{parts[2]!r:.60}")
    if not is_entity(answer):
        raise wrong(starts[3], "an answer @entityN", f"{parts[3]!r:.60}")
    if answer not in passage:
        raise wrong(starts[3], "an answer that is an entity of the passage", f"{answer}, which is not in it")
    at = starts[4]
    for line in parts[4].split("\n"):
        if line.strip() and not _NAMED.fullmatch(line):
            raise wrong(at, "@entityN:name", f"{line!r:.60}")
        at += len(line) + 1
    return Question(passage, question, answer)


def split_sentences(words: Sequence[str]) -> list[list[str]]:
    """The words in sentences, each of which ends with a full stop, exclamation or question mark of its own."""
    sentences: list[list[str]] = [[]]
    for word in words:
        sentences[-1].append(word)
        if word in _ENDS:
            sentences.append([])
    return [sentence for sentence in sentences if sentence]


def most_relevant(passage: Sequence[str], question: Sequence[str], count: int) -> list[str]:
    """The `count` sentences that share most different words with the question, in the passage's order.

    Of sentences that share equally many the earlier is taken. The rule by which the corpus of the paper was cut is not
    published; it is said to match strings. The answer may be lost, as it was there.
    """
    sentences = split_sentences(passage)
    asked = set(question)
    shared = [len(asked.intersection(sentence)) for sentence in sentences]
    best = sorted(range(len(sentences)), key=lambda k: (-shared[k], k))[:count]
    return [word for k in sorted(best) for word in sentences[k]]


def near_entities(passage: Sequence[str], reach: int) -> list[str]:
    """The words at most `reach` words away from an entity (the windows of Hill et al. 2016), in their order."""
    kept = {k for at in entity_places(passage) for k in range(at - reach, at + reach + 1)}
    return [word for k, word in enumerate(passage) if k in kept]


def passage_questions(passage: Sequence[str], first: int) -> Iterator[Question]:
    """Questions that a passage answers by itself: its sentences from the `first` on, each after those before it.

    In a sentence of 6 to 40 words, the first entity that an earlier sentence names is left out. A sentence without such
    an entity gives no question.
    """
    before, known = list[str](), set[str]()
    for number, sentence in enumerate(split_sentences(passage)):
        place = next((k for k, word in enumerate(sentence) if is_entity(word) and word in known), None)
        if number >= first and place is not None and len(sentence) in _ASKED:
            asked = [*sentence[:place], PLACEHOLDER, *sentence[place + 1:]]
            yield Question(list(before), asked, sentence[place])
        before += sentence
        known.update(sentence)


def most_frequent_entity(passage: Sequence[str]) -> str:
    """The entity that a passage names most often, of several the first: the baseline that needs no question."""
    return Counter(passage[k] for k in entity_places(passage)).most_common(1)[0][0]
