"""Every reader of texts takes files as people have them: with a mark of the byte order, and those that macOS adds."""

import gzip

import pytest

from duoln.data.text import read_books
from duoln.errors import DataError, DataFormatError
from duoln.plugins.attentive_reader.corpus import members
from duoln.plugins.handwriting import iam
from duoln.plugins.las import distributed
from duoln.plugins.order_embeddings import flickr8k
from duoln.plugins.skip_thoughts import corpus, data, sets
from duoln.plugins.transformer import corpus as transformer
from duoln.testing import check_error

MARK = b"\xef\xbb\xbf"
READERS = {
    "books": (lambda p: [list(book) for book in read_books(p, 99)], b"### A\nIt was.\n", [["It was."]]),
    "characters": (lambda p: len(transformer.load_books(p).classes), b"### A\nIt was.\n", 8),
    "labelled sentences": (sets.read_labelled, b"0 bad\n1 good\n", [("bad", 0), ("good", 1)]),
    "pairs": (lambda p: len(sets.read_pairs(p)), b"pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\ta\tb\t3\n", 1),
    "phones": (distributed.read_phones, b"0 800 h#\n800 900 ix\n", ("sil", "ih")),
    "captions": (lambda p: list(flickr8k.read_captions(p)), b"1.jpg#0\tA dog\n", ["1.jpg"]),
    "a list of images": (flickr8k.read_list, b"1.jpg\n", ["1.jpg"]),
    "a transcript": (iam.read_transcript, b"CSR:\nA b\n", ["A b"]),
}


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", READERS)
def test_the_mark_of_the_byte_order_is_no_part_of_a_text(tmp_path, name, pack):
    read, content, expected = READERS[name]
    path = tmp_path / "a.txt"
    for mark in (b"", MARK):
        path.write_bytes(pack(mark + content))
        assert read(path) == expected


def test_a_vocabulary_without_most_of_the_words_is_refused(tmp_path):
    read = corpus.make_corpus("a book", [["It was so. So it was not."]], True, ["it", "was", "so", ".", "not"])
    assert data.unknown_words(read, None, {}, "words.txt") == ""
    read = corpus.make_corpus("a book", [["It was so. So it was not."]], True, ["the", "so", "not", "it"])
    assert data.unknown_words(read, None, {}, "words.txt") == "words that are not in the vocabulary: training 44.4%"
    read = corpus.make_corpus("a book", [["It was so. So it was not."]], True, ["le", "."])
    check_error(DataError, lambda: data.unknown_words(read, None, {}, "words.txt"), "words.txt", "training", "77.8%")


def test_a_transcript_as_it_is_distributed(tmp_path):
    path = tmp_path / "a01.txt"
    path.write_bytes(b"OCR:\r\n\r\nA 5 % b\r\n\r\nCSR:\r\n\r\nA 5 %\r\n\r\nand b %%%%\r\n%%%%%\r\n\x1a")
    assert iam.read_transcript(path) == ["A 5 %", "and b"]
    path.write_bytes(b"CSR:\r\n\r\n%%%%\r\n\x1a")
    check_error(DataFormatError, lambda: iam.read_transcript(path), "a01.txt", "lines with text", "none")


def test_files_that_macos_adds_are_passed_over(tmp_path):
    content = b"somewhere\n\n@entity1 met .\n\n@placeholder met .\n\n@entity1\n\n@entity1:A\n"
    for name in ("a.question", "._a.question"):
        path = tmp_path / "training" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if name[0] == "a" else b"\x00\x05\x16\x07")
    assert [member.split for member in members(tmp_path)] == ["train"]
