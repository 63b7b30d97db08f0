"""IAM-OnDB as it is distributed, `lineStrokes/*/*/*.xml` and `ascii/*/*/*.txt`, is converted to prepared files."""

from __future__ import annotations

import re
from collections.abc import Set
from pathlib import Path
from xml.parsers import expat

import numpy as np

from duoln.data import read_text
from duoln.data.bounded import CONTENT_ERRORS, read_whole
from duoln.data.files import visible, write_whole
from duoln.errors import DataFormatError, DataMissingError
from duoln.plugins.handwriting import corpus
from duoln.plugins.handwriting.corpus import Line

_MAX_XML = 1 << 23
"""Bytes of a stroke file; the longest lines have some 100,000."""
_MAX_TEXT = 1 << 20
"""Bytes of a transcript, which has some 1,000, or of a list of forms, which has some 10,000."""
_NUMBER = re.compile(r"-?[0-9]{1,9}(\.[0-9]{0,9})?")
_NO_TEXT = re.compile("\x1a|%%+\\s*$")
"""Ctrl-Z, with which DOS ended a file, and the signs that end some lines of the corpus; a single % is text."""
_LISTS = {"train": ("trainset.txt",), "valid": ("testset_v.txt", "testset_t.txt"), "test": ("testset_f.txt",)}
"""The official lists of the recognition task that make each split."""


def prepare(source: Path, target: Path) -> list[Path]:
    """Read the corpus below `source` and write its three prepared files, and a list of what was left out.

    A form (a page) is left out if its transcript and its stroke files have different numbers of lines, because none of
    its lines could be trusted, or if none of the official lists names it. Every other fault is an error.

    Raises:
        DataMissingError: `source` has no lineStrokes or ascii, or lacks an official list.
        DataFormatError: a damaged stroke file or transcript.
        DataError: a file cannot be read or written.
    """
    strokes, transcripts = source / "lineStrokes", source / "ascii"
    for folder in (strokes, transcripts):
        if not folder.is_dir():
            raise DataMissingError(f"{folder}: expected the folder of that name of IAM-OnDB, found nothing there")
    files: dict[str, list[Path]] = {}
    for path in visible(strokes.rglob("*.xml")):
        files.setdefault(path.stem.rpartition("-")[0], []).append(path)
    if not files:
        raise DataMissingError(f"{strokes}: expected stroke files FORM-NN.xml below it, found none")
    texts = {path.stem: path for path in visible(transcripts.rglob("*.txt"))}
    forms: dict[str, list[Line]] = {}
    left_out: list[str] = []
    for form, parts in files.items():
        if form not in texts:
            left_out.append(f"{form}: {len(parts)} stroke files and no transcript")
            continue
        lines = read_transcript(texts[form])
        if len(lines) != len(parts):
            left_out.append(f"{form}: {len(parts)} stroke files and {len(lines)} lines of transcript")
            continue
        forms[form] = [read_strokes(path, text) for path, text in zip(parts, lines, strict=True)]
    if not forms:
        raise DataMissingError(f"{source}: expected forms with stroke files and a transcript, found none of "
                               f"{len(files)}; {left_out[0]}")
    written = []
    forms_of = split_forms(source, forms.keys())
    listed = {name for names in forms_of.values() for name in names}
    left_out += [f"{name}: in none of the official lists" for name in forms if name not in listed]
    for split, names in forms_of.items():
        written.append(corpus.path_of(target, split))
        corpus.write_lines(written[-1], [line for name in names for line in forms[name]])
    if left_out:
        written.append(write_whole(target / "handwriting" / "left_out.txt", "\n".join([*left_out, ""]).encode()))
    return written


def split_forms(source: Path, forms: Set[str]) -> dict[str, list[str]]:
    """The forms of each split, in the order of the official lists, which lie somewhere below `source`.

    A list has the whole names of forms: a01-053 and a01-053x are pages of different lists.

    Raises:
        DataMissingError: a list is not there. DataFormatError: a list has none of the forms, or one is in two lists.
    """
    lists = {path.name: path for path in source.rglob("*set*.txt")}
    for name in (name for names in _LISTS.values() for name in names):
        if name not in lists:
            raise DataMissingError(f"{source}: expected {name}, a list of the recognition task, below it; found none")
    parts: dict[str, list[str]] = {}
    list_of: dict[str, str] = {}
    for split, names in _LISTS.items():
        parts[split] = []
        for name in names:
            chosen = [form for form in read_text(lists[name], "latin-1", _MAX_TEXT).split() if form in forms]
            if not chosen:
                raise DataFormatError(lists[name], 0, "names of forms whose strokes are there", "none")
            for form in chosen:
                if form in list_of:
                    raise DataFormatError(lists[name], 0, f"forms of no other list, which {form} is not",
                                          f"it also in {list_of[form]}")
                list_of[form] = name
            parts[split] += chosen
    return parts


def read_transcript(path: Path) -> list[str]:
    """The lines of the CSR part of a transcript: the written text, line by line; lines without text are left out.

    Raises:
        DataFormatError: there is no such part, or it has no line with text.
    """
    _, mark, part = read_text(path, "latin-1", _MAX_TEXT).partition("CSR:")
    if not mark:
        raise DataFormatError(path, 0, "a part that begins with CSR:", "none")
    lines = [line for line in (_NO_TEXT.sub("", line).strip() for line in part.split("\n")) if line]
    if not lines:
        raise DataFormatError(path, 0, "lines with text after CSR:", "none")
    return lines


def read_strokes(path: Path, text: str) -> Line:
    """One line from its stroke file.

    Raises:
        DataFormatError: damaged or truncated XML, a stroke without points, a coordinate that is no finite number,
            or a distance that no pen can go.
        DataError: the file cannot be read.
    """
    points, last_points, parser = list[tuple[float, float]](), list[int](), expat.ParserCreate()

    def wrong(expected: object, actual: object) -> DataFormatError:
        return DataFormatError(path, max(parser.CurrentByteIndex, 0), expected, actual)

    def number(attributes: dict[str, str], name: str) -> float:
        digits = attributes.get(name, "")
        if not _NUMBER.fullmatch(digits):
            raise wrong(f"a finite number as a point's {name}", repr(digits[:40]))
        return float(digits)

    def start(name: str, attributes: dict[str, str]) -> None:
        if name == "Stroke":
            last_points.append(len(points) - 1)  # of the stroke before, until this one has points
        elif name == "Point":
            points.append((number(attributes, "x"), number(attributes, "y")))

    def end(name: str) -> None:
        if name == "Stroke":
            if len(points) - 1 == last_points[-1]:
                raise wrong("a stroke with points", "an empty one")
            last_points[-1] = len(points) - 1

    parser.StartElementHandler, parser.EndElementHandler = start, end
    try:
        parser.Parse(read_whole(path, _MAX_XML, "XML text"), True)
    except (expat.ExpatError, *CONTENT_ERRORS) as error:  # of an encoding that Python has not
        raise wrong("well-formed XML", error) from error
    if len(points) < 2:
        raise DataFormatError(path, 0, "at least 2 points in strokes", len(points))
    places, pen_up = np.array(points), np.zeros(len(points), np.uint8)
    pen_up[last_points] = 1
    offsets = np.diff(places, axis=0, prepend=places[:1])
    if np.abs(offsets).max() > np.iinfo(np.int16).max:
        raise DataFormatError(path, 0, f"distances of at most {np.iinfo(np.int16).max}", f"{np.abs(offsets).max():g}")
    line = Line(path.stem, text, np.rint(offsets).astype(np.int16), pen_up)
    corpus.check_line(path, line)
    return line
