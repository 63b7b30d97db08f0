"""Skip-thoughts' books: which corpus is read, whole books held out for validation, and counts a block at a time."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from duoln.errors import DataError, DataFormatError, DataMissingError
from duoln.plugins.skip_thoughts import data
from duoln.plugins.skip_thoughts.corpus import UNKNOWN, make_corpus
from duoln.plugins.skip_thoughts.data import Triplets
from duoln.plugins.skip_thoughts.task import SkipThoughtsTask
from duoln.tasks import make_config
from duoln.testing import check_error

TASK = SkipThoughtsTask()
HELD_OUT = Path(data.PLACES["novels100"][1]).name


def _book(name, sentences):
    return f"### {name} | A | 1900\n" + "".join(f"{name} says {word} now.\n" for word in sentences) + "\n"


def _write(root, name, text):
    (root / "books").mkdir(exist_ok=True)
    path = root / "books" / name
    path.write_bytes(gzip.compress(text.encode()))
    return path


def _words_of(triplets):
    c = triplets.corpus
    return [[c.words[k] for k in c.numbers[c.starts[m]:c.starts[m + 1]]] for m in triplets.middles]


@pytest.fixture
def novels100(tmp_path):
    _write(tmp_path, "novels100.txt.gz", _book("One", "abcdef") + _book("Two", "ghijkl"))
    _write(tmp_path, HELD_OUT, _book("Three", "abcx"))
    return tmp_path


def test_the_largest_corpus_that_is_there(novels100):
    _write(novels100, "novels.txt.gz", _book("Small", "ab"))

    def name(source):
        return data.load(source, None, 50, True, 0.02, novels100)[0].name

    assert name("auto") == name("novels100") == "novels100, 12 sentences" and name("novels") == "novels, 2 sentences"
    check_error(DataMissingError, lambda: name("bookcorpus"), "books/bookcorpus.txt.gz", "--set corpus=FILE")
    _write(novels100, "bookcorpus.txt.gz", _book("All", "abc"))
    assert name("auto") == "bookcorpus, 3 sentences"


def test_held_out_books_are_for_validation_alone(novels100):
    dataset, corpus, held_out, _ = data.load("novels100", None, 50, True, 0.02, novels100)
    train, valid = data.parts(corpus, held_out, 9, 0.5)
    assert dataset.provenance == "substitute"
    assert _words_of(train) == [[*f"{book} says {letter} now .".split()] for book, letters in
                                (("one", "bcde"), ("two", "hijk")) for letter in letters]
    # Words that only held-out books have are unknown.
    assert _words_of(valid) == [["<unknown>", "says", letter, "now", "."] for letter in "bc"]
    assert held_out.words == corpus.words and (held_out.numbers == UNKNOWN).sum() == 5


def test_a_text_of_ones_own_has_no_held_out_books(novels100):
    path = _write(novels100, "mine.txt.gz", _book("Mine", "abcdefghij"))
    for source, text in (("novels100", str(path)), ("made", None)):
        assert data.load(source, text, 50, True, 0.02, novels100).held_out is None


def test_held_out_books_that_are_missing_or_damaged(novels100):
    cfg = make_config(TASK, "ln", "smoke", {"source": "auto", "judge": "none", "batch_size": 2})
    assert TASK.data(cfg, novels100).dataset.name == "novels100, 12 sentences"
    path = novels100 / "books" / HELD_OUT
    path.write_bytes(path.read_bytes()[:-9])
    check_error(DataFormatError, lambda: TASK.data(cfg, novels100), HELD_OUT, "gzip")
    path.unlink()
    check_error(DataError, lambda: TASK.data(cfg, novels100), HELD_OUT, "missing")


def test_validation_has_triplets_of_every_book():
    lengths = np.tile([2, 3], 50)
    books = [[" ".join(f"w{k}x{i}" for i in range(n)) for n in lengths] for k in range(4)]
    corpus = make_corpus("four", books, False)
    _, valid = data.parts(corpus, corpus, 5, 0.5)
    split = data.valid_split(valid, valid, 8, 8)
    numbers = np.unique(split["words"])
    assert {corpus.words[k][:2] for k in numbers if k > UNKNOWN} == {"w0", "w1", "w2", "w3"}
    assert split["mask"].any(axis=1).sum() == 8


def test_words_are_counted_alike_in_blocks_of_any_size(monkeypatch):
    rng = np.random.default_rng(0)
    text = [" ".join(f"w{k}" for k in rng.integers(0, 9, n)) for n in rng.integers(1, 9, 100)]
    train = Triplets(make_corpus("made", [text], False), np.arange(1, 99), 7)
    whole = data._target_counts(train)
    for size in (1, 7, 100):
        monkeypatch.setattr(data, "_COUNTED", size)
        np.testing.assert_array_equal(data._target_counts(train), whole)
