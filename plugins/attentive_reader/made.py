"""Synthetic questions: a passage states facts about entities, and the question asks for one of them."""

from __future__ import annotations

from duoln import Stream
from duoln.plugins.attentive_reader.corpus import Collector, Corpus, Cut
from duoln.plugins.attentive_reader.questions import PLACEHOLDER, Question
from duoln.tasks.originals import DATA_SEED

SIZES = {"train": 320, "valid": 64, "test": 64}
_ENTITIES, _IN_A_PASSAGE = 20, 5
_VERBS, _OTHERS = 12, 400
_FACTS = 6
_FILLING = (12, 28)
"""Words of a sentence without information: four sentences are then about as long as those of the paper's cut."""


def make(cut: Cut) -> Corpus:
    """Train, valid and test, always the same.

    A sentence says that one entity does something to another; the question repeats one of them without the first.
    """
    collector = Collector(cut)
    for split, count in SIZES.items():
        for k in range(count):
            collector.add(split, f"{k:06d}", _question(Stream(DATA_SEED, f"attentive_reader.made.{split}", step=k)))
    return collector.corpus()


def _question(rng: Stream) -> Question:
    here = [f"@entity{k}" for k in rng.permutation(_ENTITIES)[:_IN_A_PASSAGE]]
    facts, passage = [], list[str]()
    for verb in rng.permutation(_VERBS)[:_FACTS]:
        first, second = (here[k] for k in rng.permutation(_IN_A_PASSAGE)[:2])
        # Words without information: the common ones are drawn far more often, as in any language.
        length = _FILLING[0] + int(rng.integers(_FILLING[1] - _FILLING[0] + 1, ()))
        filling = [f"word{int(u * u * u * _OTHERS)}" for u in rng.uniform((length,))]
        cut = int(rng.integers(length, ()))
        facts.append((first, f"verb{verb}", second))
        passage += [*filling[:cut], *facts[-1], *filling[cut:], "."]
    answer, verb_word, object_word = facts[int(rng.integers(_FACTS, ()))]
    return Question(passage, [PLACEHOLDER, verb_word, object_word, "."], answer)
