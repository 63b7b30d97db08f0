"""Made books, so that everything runs without a corpus: short sentences whose verb agrees with its subject."""

from __future__ import annotations

from duoln.randomness import Stream

_SUBJECTS = (("The captain", "sails", "The captains", "sail"), ("A robin", "sings", "Robins", "sing"),
             ("Mr. Grey", "waits", "The clerks", "wait"), ("The old dog", "barks", "Old dogs", "bark"))
"""Of each: one with its verb, many with theirs."""
_WHERE = ("at sea", "in the garden", "by the house", "on the road")
_WHEN = ("", " today", " at last", " again")


def make_books(seed: int, books: int = 6, sentences: int = 240) -> list[str]:
    """Books of so many sentences, eight a line, each after a line with `###`. The same for the same seed."""
    made = []
    for k in range(books):
        rng = Stream(seed, "transformer.books", step=k)
        subjects, many, where, when = (rng.child(name).integers(size, (sentences,)) for name, size in (
            ("subject", len(_SUBJECTS)), ("many", 2), ("where", len(_WHERE)), ("when", len(_WHEN))))
        lines = [f"{' '.join(_SUBJECTS[s][2 * m:2 * m + 2])} {_WHERE[w]}{_WHEN[t]}."
                 for s, m, w, t in zip(subjects, many, where, when, strict=True)]
        made.append("### A made book\n" + "".join(" ".join(lines[i:i + 8]) + "\n" for i in range(0, sentences, 8)))
    return made
