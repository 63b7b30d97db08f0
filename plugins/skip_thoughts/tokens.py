"""Sentences and words of plain English text, by two regular expressions.

Words are split as in the Penn Treebank, whose splitting the paper's code applies (`word_tokenize` of NLTK). Punctuation
marks and n't, 's, 're, 've, 'll, 'd and 'm are separate words. A full stop belongs to the word before it, as in "Mr."
and "U.S.", except at the end of the sentence and before a closing quote or bracket. An apostrophe, hyphen, slash,
ampersand or full stop inside a word stays there: "o'clock", "and/or", "e.g.". Text that is already split does not
change, brackets written as -LRB- and -RRB- included. A typographic apostrophe is read as a plain one.

A sentence ends at a full stop, question or exclamation mark before white space and a capital, digit or opening quote,
unless the full stop belongs to a title or an initial.
"""

from __future__ import annotations

import re

_TITLES = frozenset(("mr", "mrs", "ms", "dr", "st", "messrs", "prof", "rev", "capt", "col", "gen", "lieut", "sergt",
                     "hon", "esq", "jr", "sr", "no", "vol", "viz", "etc"))
# Marks that follow marks, and the space after them, are tried once: a text of marks alone takes no longer than others.
_END = re.compile(r"""(?:(?<![\w'])(?P<word>[\w']+)|(?<![\w'.!?]))(?P<mark>[.!?]++)["'”’)\]]*+\s++"""
                  r"""(?=["'“‘(\[]*[A-Z0-9])""")
_WORD = re.compile(r"""
    n't\b | \w+?(?=n't\b)                                # do n't
  | '(?:s|re|ve|ll|d|m|t|em|til|\d\ds?)\b                # it 's
  | (?<!\S)-[lr][rsc]b-(?!\S)                            # -LRB-
  | \w+ (?: (?: '(?!(?:s|re|ve|ll|d|m)\b)                # o'clock
            | \.?- | [/&@.]                              # good-natured and/or AT&T e.g
            | (?<=\d)[,:](?=\d) ) \w+ )*+                # 1,000 10:30
    (?: \.(?= [,;:] | '(?:s|d|ll)\b | \s++\S ) )?        # Mr. Brown
  | \.\.+ | --+ | ``|'' | \S""", re.VERBOSE | re.IGNORECASE)


def sentences(paragraph: str) -> list[str]:
    """The sentences of a paragraph, in order."""
    parts, start = [], 0
    for end in _END.finditer(paragraph):
        word = end["word"] or ""
        if end["mark"] == "." and (word.lower() in _TITLES or (len(word) == 1 and word.isupper() and word != "I")):
            continue
        parts.append(paragraph[start:end.end()].strip())
        start = end.end()
    parts.append(paragraph[start:].strip())
    return [sentence for sentence in parts if sentence]


def words(sentence: str) -> list[str]:
    """The words and marks of a sentence, in order."""
    return _WORD.findall(sentence.replace("’", "'"))
