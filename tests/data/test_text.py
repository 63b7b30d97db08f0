"""A text of the user's own: encoding, ends of lines, size; JSON, whose depth, size and characters are checked before its values are made."""

import gzip

import pytest

from duoln.data import json_text, read_json, read_lines, read_text
from duoln.data.text import describe_unknown
from duoln.errors import DataError, DataFormatError, DataMissingError, DtypeError, UsageError
from duoln.testing import check_error


@pytest.fixture
def file(tmp_path):
    def make(content):
        path = tmp_path / "own.txt"
        path.write_bytes(content)
        return path

    return make


@pytest.mark.parametrize(("content", "encoding", "text"), [
    (b"a\r\nb\rc\n\r\n", "utf-8", "a\nb\nc\n\n"), ("caf\xe9\n".encode(), "utf-8", "caf\xe9\n"),
    (b"\xef\xbb\xbfa\n", "utf-8", "a\n"), (b"caf\xe9", "latin-1", "caf\xe9"), ("\u20ac\r\n".encode("utf-16"), "utf-16", "\u20ac\n"),
    ("a\u2028b\x0cc\n".encode(), "utf-8", "a\u2028b\x0cc\n"), (gzip.compress(b"a\r\n", mtime=0), "utf-8", "a\n")])
def test_what_is_read(file, content, encoding, text):
    assert read_text(file(content), encoding) == text


@pytest.mark.parametrize(("content", "encoding", "words"), [
    (b"", "utf-8", ["at byte 0", "an empty file"]), (gzip.compress(b"", mtime=0), "utf-8", ["an empty file"]),
    (b"caf\xe9 au lait", "utf-8", ["at byte 3", "a text in utf-8", "byte 0xe9"]),
    ("\u20ac".encode()[:-1], "utf-8", ["at byte 0", "byte 0xe2"]), (b"caf\xc3\xa9", "ascii", ["at byte 3", "ascii", "byte 0xc3"]),
    ("a".encode("utf-16"), "utf-8", ["at byte 0", "byte 0xff", 'encoding="utf-16"']),
    ("\u20aca".encode() + b"\0", "utf-8", ["at byte 4", "a zero byte"]), (b"\xef\xbb\xbfa\0", "utf-8", ["at byte 4", "a zero byte"]), (gzip.compress(b"a" * 99, mtime=0)[:-9], "utf-8", ["undamaged gzip"])])
def test_what_is_refused(file, content, encoding, words):
    check_error(DataFormatError, lambda: read_text(file(content), encoding), "own.txt", *words)


def test_the_size_is_bounded(file):
    assert read_text(file(b"a" * 10), most=10) == "a" * 10
    for content in (b"a" * 11, gzip.compress(b"a" * 11)):
        check_error(DataFormatError, lambda content=content: read_text(file(content), most=10), "own.txt", "at most 10 bytes")


def test_a_file_that_is_not_there(tmp_path):
    check_error(DataMissingError, lambda: read_text(tmp_path / "own.txt"), "own.txt", "text", "found nothing there")


@pytest.mark.parametrize("encoding", ["klingon", "base64", "a\0b", "rot13", "utf-8 "*99])
def test_an_encoding_that_there_is_not(file, encoding):
    check_error(UsageError, lambda: read_text(file(b"a"), encoding), "[read_text] encoding", "utf-8", repr(encoding))


def test_an_encoding_that_is_no_text(file):
    check_error(DtypeError, lambda: read_text(file(b"a"), None), "[read_text] encoding", "found NoneType")


# Lines --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("content", "encoding", "lines"), [
    (b"\xef\xbb\xbfthe\r\ncat", "utf-8", ["the", "cat"]), (b"\xef\xbb\xbf0 caf\xe9\n", "latin-1", ["0 caf\xe9"]),
    (gzip.compress(b"\xef\xbb\xbfthe\n", mtime=0), "utf-8", ["the"]), ("a\n\ufeffb\n".encode(), "utf-8", ["a", "\ufeffb"]), (b"", "utf-8", [])])
def test_lines_without_the_mark_of_the_byte_order(file, content, encoding, lines):
    assert list(read_lines(file(content), 99, 99, encoding)) == list(enumerate(lines, start=1))


@pytest.mark.parametrize(("content", "words"), [
    (b"a\ncaf\xe9\n", ["line 2", "byte 3", "0xe9"]), ("a\n".encode("utf-16"), ["line 1", "UTF-16"]), (b"a\nb\0\n", ["line 2", "zero byte"]),
    (b"a" * 12, ["line 1", "at most 9 bytes"]), (b"a\n" * 20, ["at most 30 bytes"])])
def test_lines_that_are_refused(file, content, words):
    check_error(DataFormatError, lambda: list(read_lines(file(content), 30, 9)), "own.txt", *words)


def test_unknown_words_are_described_and_most_of_them_refused():
    assert describe_unknown("v.txt", {"train": 0.0}) == ""
    assert describe_unknown("v.txt", {"train": 0.021, "test": 0.0}) == "words that are not in the vocabulary: train 2.1%"
    check_error(DataError, lambda: describe_unknown("v.txt", {"train": 0.1, "test": 0.51}), "v.txt", "most words of test", "51.0%")


# JSON -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("content", "words"), [
    (b"[" * 65 + b"]" * 65, ["nested too deeply"]), (b'{"a":' * 65 + b"1" + b"}" * 65, ["nested too deeply"]),
    (b"[" * 990 + b"]" * 990, ["nested too deeply"]), (b"[" * 10**5, ["nested too deeply"]),
    (b'["\\ud800"]', ["surrogates"]), (b'{"\\uDC00": 1}', ["surrogates"]), (b'["a\xff"]', ["UTF-8", "at byte 3", "0xff"]),
    (b"[1,\n 2", ["at byte 6", "the end of the file", "line 2"]), (b"[1, x]", ["at byte 4", "Expecting value"]),
    (b"9" * 5000, ["digits"])])
def test_json_that_is_refused(file, content, words):
    check_error(DataFormatError, lambda: read_json(file(content), 10**6, "JSON list"), "own.txt", "JSON", *words)


def test_json_that_is_read(file):
    value = read_json(file(b"[" * 64 + b'"\\ud83d\\ude00 \\u00e9"' + b"]" * 64), 10**6)
    for _ in range(64):
        [value] = value
    assert value == "\N{GRINNING FACE} é"


def test_too_many_values_are_not_parsed(file, monkeypatch):
    monkeypatch.setattr(json_text, "_MOST_VALUES", 5)
    path = file(b"[1, 2, 3, [], {}]")
    check_error(DataFormatError, lambda: read_json(path, 99), "more than 5 values")
    check_error(DataFormatError, lambda: read_json(path, 9), "at most 9 bytes", "17")
