"""The Transformer's data: the alphabet, books parted for training, validation and test, and windows of them."""

import gzip
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from task_checks import root_with

from duoln.errors import DataError, DataFormatError, UsageError
from duoln.plugins.transformer import corpus, data
from duoln.plugins.transformer.corpus import ALPHABET
from duoln.plugins.transformer.task import TransformerTask
from duoln.tasks import make_config
from duoln.testing import check_error, check_task

TASK = TransformerTask()
CHARACTERS, OTHER, encode, decode = ALPHABET.characters, ALPHABET.unknown, ALPHABET.encode, ALPHABET.decode
REAL = root_with(corpus.PLACES["novels"][0])


def _book(name, words):
    return f"### {name} | A | 1900\n" + "".join(f"{name} says {word} now.\n\n" for word in words) + "\n"


def _write(root, name, text):
    (root / "books").mkdir(exist_ok=True)
    path = root / "books" / name
    path.write_bytes(gzip.compress(text.encode()))
    return path


# The alphabet -------------------------------------------------------------------------------------------

def test_each_character_has_a_class_of_its_own():
    assert ALPHABET.classes == 76 and len(set(CHARACTERS)) == OTHER == 75
    assert encode(CHARACTERS).tolist() == list(range(OTHER)) and encode("").shape == (0,)
    assert encode("aé\u2014\x00#\U0001f600\ud800b").tolist() == [0, *[OTHER] * 6, 1]
    assert decode(encode("It was, \"now\"-(1)\n")) == "It was, \"now\"-(1)\n"


def test_a_text_to_continue_is_of_the_alphabet():
    assert ALPHABET.encode_strictly("x", "It").tolist() == encode("It").tolist()
    check_error(UsageError, lambda: ALPHABET.encode_strictly("x", ""), "at least one character")
    check_error(UsageError, lambda: ALPHABET.encode_strictly("x", "caf\u00e9"), "\u00e9", "position 3")


def _texts(read):
    """The books as texts, with ? for characters outside the alphabet."""
    return ["".join((CHARACTERS + "?")[k] for k in read.classes[first:last]) for first, last in pairwise(read.starts)]


# Books --------------------------------------------------------------------------------------------------

def test_books_begin_after_their_titles(tmp_path):
    path = _write(tmp_path, "a.txt.gz", "\n \nbefore\n\n" + _book("One", "ab") + "### Empty\n\n" + _book("Two", "c"))
    assert _texts(corpus.load_books(path)) == ["before\n", "One says a now.\nOne says b now.\n", "Two says c now.\n"]
    plain = tmp_path / "plain.txt"
    plain.write_bytes("\ufeff### One\r\none\r\n\r\ntwo: -- three\n\n".encode() + b"four ### five")
    assert _texts(corpus.load_books(plain)) == ["one\ntwo: -- three\nfour ??? five\n"]
    for content in (b"", b"\n\n", b"### title\n\n", b"### title"):
        plain.write_bytes(content)
        check_error(DataError, lambda: corpus.load_books(plain), "plain.txt", "at least one book")


@pytest.mark.parametrize("size", [1, 2, 7, 50])
def test_books_are_read_alike_in_blocks_of_any_size(size, tmp_path, monkeypatch):
    path = _write(tmp_path, "a.txt.gz", "caf\u00e9\r\n" + _book("One", "ab") + "\n\n" + _book("Two", "c") + "the end")
    whole = corpus.load_books(path)
    monkeypatch.setattr(corpus, "_BLOCK", size)
    assert all(np.array_equal(a, b) for a, b in zip(corpus.load_books(path), whole, strict=True))
    assert _texts(whole)[0] == "caf?\n" and len(whole.starts) == 4


def test_the_last_books_are_for_validation_and_test():
    def texts(several, held_out=None):
        both = [None if some is None else corpus.as_classes([text] for text in some) for some in (several, held_out)]
        return [decode(part).replace("\n", "") for part in corpus.parts(*both, "here")]

    assert texts(["a", "b", "c", "d"]) == ["ab", "c", "d"]
    assert texts(["a", "b", "c"], ["x", "y", "z"]) == ["abc", "xy", "z"]
    assert texts(["abcdefghijklmnopqrs"]) == ["abcdefghijklmnopqr", "s", ""]
    assert texts(["abcdefghij", "klmnopqr"]) == ["abcdefghijklmnopq", "r", ""]
    check_error(DataError, lambda: texts(["a", "b"], ["x"]), "here", "two books")


def test_which_corpus_is_read(tmp_path):
    _write(tmp_path, "novels100.txt.gz", _book("One", "abcdef") + _book("Two", "ghijkl"))
    _write(tmp_path, Path(corpus.PLACES["novels100"][1]).name, _book("Three", "abc") + _book("Four", "d"))

    def load(source, file=None):
        return corpus.load(source, file, tmp_path)[0]

    dataset, parts = load("auto")
    assert dataset == ("novels100, 263 characters", "substitute")
    assert decode(parts.test) == "Four says d now.\n" and decode(parts.valid).startswith("Three says a now.\nThree")
    _write(tmp_path, "novels.txt.gz", "".join(_book(name, "ab") for name in ("A", "B", "C")))
    assert load("auto")[0].name == load("novels")[0].name == "novels, 84 characters"
    mine = _write(tmp_path, "mine.txt", _book("Mine", "abcdefghij"))
    assert load("novels", str(mine))[0].name.startswith("mine, ") and load("made", str(mine))[0] == ("made books", "synthetic")
    (tmp_path / "books" / Path(corpus.PLACES["novels100"][1]).name).unlink()
    check_error(DataError, lambda: load("novels100"), Path(corpus.PLACES["novels100"][1]).name)


@pytest.mark.long
def test_damaged_books_are_refused_by_name(tmp_path):
    root = tmp_path / "corpus"
    root.mkdir()
    _write(root, "novels.txt.gz", "".join(_book(name, "abcdefgh") for name in ("One", "Two", "Three")))
    check_task(TASK, settings={"blocks": 1, "length": 5, "batch_size": 2}, gradients=False, agreement=False, corpus=root,
               corpus_settings={"source": "novels", "length": 5})
    path = _write(tmp_path, "latin.txt.gz", "a")
    path.write_bytes(gzip.compress("caf\u00e9".encode("latin-1")))
    check_error(DataFormatError, lambda: corpus.load("auto", str(path)), "latin.txt.gz", "utf-8")


# Windows ------------------------------------------------------------------------------------------------

def test_a_window_and_the_character_after_each_of_its_own():
    text = np.arange(100, 160, dtype=np.uint8)
    windows = data.Windows(text, 7, 500, 0)
    batch = windows(3)
    assert {key: (a.shape, a.dtype) for key, a in batch.items()} == {key: ((500, 7), np.int32) for key in "xy"}
    assert (np.diff(batch["x"]) == 1).all() and (batch["y"] == batch["x"] + 1).all()
    assert batch["x"][:, 0].min() == 100 and batch["y"][:, -1].max() == 159  # the first and the last one
    np.testing.assert_array_equal(windows(3)["x"], batch["x"])
    assert not np.array_equal(windows(4)["x"], batch["x"])
    assert not np.array_equal(data.Windows(text, 7, 500, 1)(3)["x"], batch["x"])


@pytest.mark.parametrize(("length", "count", "expected"), [
    (3, 2, [0, 6]), (3, 3, [0, 3, 6]), (3, 99, [0, 3, 6]), (9, 5, [0]), (4, 1, [0])])
def test_evaluated_windows_stand_evenly_apart_and_share_no_prediction(length, count, expected):
    batch = data.fixed_windows(np.arange(10, dtype=np.uint8), length, count)
    assert batch["x"][:, 0].tolist() == expected and batch["y"].shape == (len(expected), length)
    assert len(np.unique(batch["y"])) == batch["y"].size


def test_wrong_settings_are_refused():
    for name, value in (("length", 0), ("batch_size", 0), ("updates", -1), ("windows", 0)):
        check_error(UsageError, lambda wrong={name: value}: TASK.data(make_config(TASK, "pre", "smoke", wrong)), name, f"found {value}")
    check_error(DataError, lambda: TASK.data(make_config(TASK, "pre", "smoke", {"length": 99_999})), "99999 characters", "for train")
