"""Every reader of texts takes files as people have them: with a mark of the byte order, and those that macOS adds."""

import gzip
import struct

import numpy as np
import pytest

from duoln.errors import DataError, DataFormatError
from duoln.plugins.attentive_reader import archive, vocabulary
from duoln.plugins.handwriting import iam
from duoln.plugins.las import audio, timit
from duoln.plugins.order_embeddings import flickr8k
from duoln.plugins.skip_thoughts import corpus, data, sets, vectors
from duoln.plugins.transformer import books
from duoln.testing import check_error

MARK = b"\xef\xbb\xbf"
READERS = {
    "a vocabulary": (lambda p: corpus.read_vocabulary(p, 9, True), b"the\ncat\n", ["the", "cat"]),
    "words of the reader": (lambda p: vocabulary.read_words(p, 9).words, b"the\ncat\n", ["the", "cat"]),
    "books": (lambda p: [list(book) for book in corpus.read_books(p)], b"### A\nIt was.\n", [["It was."]]),
    "characters": (lambda p: len(books.read_books(p).classes), b"### A\nIt was.\n", 8),
    "labelled sentences": (sets.read_labelled, b"0 bad\n1 good\n", [("bad", 0), ("good", 1)]),
    "pairs": (lambda p: len(sets.read_pairs(p)), b"pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\ta\tb\t3\n", 1),
    "word vectors": (lambda p: list(vectors.read_vectors(p, ["cat"])), b"cat 1 2\n", ["cat"]),
    "phones": (timit.read_phones, b"0 800 h#\n800 900 ix\n", ("sil", "ih")),
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


def test_a_cased_vocabulary_is_refused_where_the_text_is_lower_cased(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("the\nThe\ncat\n")
    check_error(DataFormatError, lambda: corpus.read_vocabulary(path, 9, True), "line 2", "lower_case=true", "'The'")
    assert corpus.read_vocabulary(path, 9, False) == ["the", "The", "cat"]


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
    assert [member.split for member in archive.members(tmp_path)] == ["train"]


def test_words_with_spaces_have_vectors(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(". . . 0.1 0.2\ncat 1 2\nat name@domain.com 3 4\n".replace(". . . 0.1 0.2\ncat 1 2\n", "cat 1 2\n. . . 0.1 0.2\n"))
    assert {word: vector.tolist() for word, vector in vectors.read_vectors(path, ["cat", "at name@domain.com"]).items()} == {
        "cat": [1, 2], "at name@domain.com": [3, 4]}
    path.write_text("cat 1 2\ndog 1 2 3\n")
    check_error(DataFormatError, lambda: vectors.read_vectors(path, ["cat"]), "line 2", "3 numbers after 'dog'")


@pytest.mark.parametrize("size", [0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000])
def test_a_sound_that_was_written_to_a_pipe(tmp_path, size):
    samples = np.arange(40, dtype="<i2")
    path = tmp_path / "a.wav"
    path.write_bytes(b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0" + struct.pack("<HHIIHH", 1, 1, 16000, 32000, 2, 16)
                     + b"data" + struct.pack("<I", size) + samples.tobytes())
    assert np.array_equal(audio.read_audio(path, 16000).samples * 2 ** 15, samples)
