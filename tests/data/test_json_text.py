"""JSON: depth, size and characters are checked before the values are made."""

import pytest

from duoln.data import json_text, read_json
from duoln.errors import DataFormatError
from duoln.testing import check_error


@pytest.mark.parametrize(("content", "words"), [
    (b"[" * 65 + b"]" * 65, ["nested too deeply"]), (b'{"a":' * 65 + b"1" + b"}" * 65, ["nested too deeply"]),
    (b"[" * 990 + b"]" * 990, ["nested too deeply"]), (b"[" * 10**5, ["nested too deeply"]),
    (b'["\\ud800"]', ["surrogates"]), (b'{"\\uDC00": 1}', ["surrogates"]), (b'["a\xff"]', ["UTF-8", "at byte 3", "0xff"]),
    (b"[1,\n 2", ["at byte 6", "the end of the file", "line 2"]), (b"[1, x]", ["at byte 4", "Expecting value"]),
    (b"9" * 5000, ["digits"])])
def test_what_is_refused(tmp_path, content, words):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    check_error(DataFormatError, lambda: read_json(path, 10**6, "JSON list"), "a.json", "JSON", *words)


def test_what_is_read(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"[" * 64 + b'"\\ud83d\\ude00 \\u00e9"' + b"]" * 64)
    value = read_json(path, 10**6)
    for _ in range(64):
        [value] = value
    assert value == "\N{GRINNING FACE} é"


def test_too_many_values_are_not_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(json_text, "_MOST_VALUES", 5)
    (tmp_path / "a.json").write_bytes(b"[1, 2, 3, [], {}]")
    check_error(DataFormatError, lambda: read_json(tmp_path / "a.json", 99), "more than 5 values")
    check_error(DataFormatError, lambda: read_json(tmp_path / "a.json", 9), "at most 9 bytes", "17")
