"""JSON: numbers that are not finite are null with their reason, and half characters letters."""

import json
import math

import pytest

from duoln.data import json_text
from duoln.data.json_text import parse_json

NAN, INF = math.nan, math.inf


def _no_constant(name):
    raise AssertionError(f"{name} is no JSON")


def _read(text):
    return json.loads(text, parse_constant=_no_constant)


@pytest.mark.parametrize("value", [
    1, 1.5, "x", None, True, [], {}, [1, [2.5]], {"a": {"b": [1, None]}}, "\x1b\x7f\u202e\U0001f600", 10 ** 400, -0.0])
def test_what_json_knows_stays(value):
    assert _read(json_text.dumps(value)) == value
    assert json_text.revive(_read(json_text.dumps(value))) == value
    assert json_text.dumps(value).isascii() and json_text.dumps(value).isprintable()


@pytest.mark.parametrize("value", ["ab\ud800", ["\udcff"], {"\ud83d": 1}, {"a": ["x", {"b": "\ude00\ud83d"}]}])
def test_half_characters_are_written_in_letters(value):
    text = json_text.dumps(value)
    assert parse_json(text.encode()) == json.loads(json.dumps(value).replace("\\u", "\\\\u"))


@pytest.mark.parametrize(("value", "text"), [
    ({"a": NAN}, {"a": None, "not_finite": {"a": "nan"}}),
    ({"a": INF, "b": -INF, "c": 1.0}, {"a": None, "b": None, "c": 1.0, "not_finite": {"a": "infinity", "b": "-infinity"}}),
    ({"a": [1.0, [NAN]]}, {"a": [1.0, [None]], "not_finite": {"a[1][0]": "nan"}}),
    ({"a": {"b": NAN}}, {"a": {"b": None, "not_finite": {"b": "nan"}}}),
    ((1.0, 2), [1.0, 2]), ([NAN], [None]), (NAN, None)])
def test_what_is_not_finite_is_null_with_its_reason(value, text):
    assert _read(json_text.dumps(value)) == text
    assert _read(json_text.dumps(value, indent=2)) == text


@pytest.mark.parametrize("value", [{"a": NAN}, {"a": INF, "b": [{"c": -INF, "d": None}]}, [{"a": {"b": NAN}}],
                                   {"a": [1.0, [NAN, None]], "b": (), "c": {"d": [INF]}}, {"not_finite": {"not_finite": {"a": [1]}}},
                                   {"not_finite": {}}])
def test_it_comes_back(value):
    assert repr(json_text.revive(_read(json_text.dumps(value)))) == repr(value).replace("()", "[]")


@pytest.mark.parametrize("value", [{"not_finite": 1, "a": NAN}, {"not_finite": {"a": "nan"}}, {"x": {"not_finite": {"a": "infinity"}, "a": None}}])
def test_what_would_not_come_back_is_refused(value):
    with pytest.raises(ValueError, match="'not_finite'"):
        json_text.dumps(value)


@pytest.mark.parametrize("value", [{"not_finite": 3}, {"not_finite": {"a": "nan"}, "a": 1}, {"not_finite": {"a": 3}, "a": None},
                                   {"not_finite": None}, {"not_finite": {"b": "nan"}}, {"not_finite": []}])
def test_reviving_what_others_wrote_raises_nothing(value):
    json_text.revive(value)


@pytest.mark.parametrize("value", [{1: 2}, {"a": {None: 1}}, {"a": {1, 2}}, object(), b"x", {"a": 1j}])
def test_what_json_cannot_hold(value):
    with pytest.raises(TypeError):
        json_text.dumps(value)


def test_a_value_that_holds_itself():
    value = {}
    value["a"] = value
    with pytest.raises(ValueError, match="holds itself"):
        json_text.dumps(value)
