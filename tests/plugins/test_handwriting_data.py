"""Handwriting's files: the prepared form, the corpus as it is distributed, and what is wrong with damaged ones."""

from pathlib import Path

import numpy as np
import pytest
from task_checks import root_with

from duoln import cli
from duoln.errors import DataError, DataFormatError, DataMissingError
from duoln.plugins.handwriting import corpus, data, iam
from duoln.plugins.handwriting.corpus import ALPHABET, ARRAYS, PADDING, Line, path_of, read_lines, write_lines
from duoln.plugins.handwriting.data import make_lines
from duoln.plugins.handwriting.task import Handwriting
from duoln.tasks import make_config
from duoln.testing import check_error

TASK = Handwriting()
REAL = root_with(path_of(Path(), "train"))

XML = """<?xml version="1.0" encoding="ISO-8859-1"?>
<WhiteboardCaptureSession>
  <WhiteboardDescription><SensorLocation corner="top_left"/></WhiteboardDescription>
  <StrokeSet>
    <Stroke colour="black" start_time="1.0" end_time="1.2">
      <Point x="100" y="50" time="1.0"/><Point x="104" y="47" time="1.1"/><Point x="110" y="60" time="1.2"/>
    </Stroke>
    <Stroke colour="black" start_time="2.0" end_time="2.2">
      <Point x="130" y="60" time="2.0"/><Point x="131" y="61" time="2.1"/><Point x="135" y="62" time="2.2"/>
    </Stroke>
  </StrokeSet>
</WhiteboardCaptureSession>
"""


# Characters ---------------------------------------------------------------------------------------------

def test_the_57_classes():
    assert ALPHABET.classes == 57 and ALPHABET.encode("aZ !#").tolist() == [0, 51, 52, 54, 56]


# The prepared form --------------------------------------------------------------------------------------

def _same(a: Line, b: Line):
    return (a.name, a.text) == (b.name, b.text) and np.array_equal(a.offsets, b.offsets) \
        and np.array_equal(a.pen_up, b.pen_up)


def _rewrite(path, **changes):
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive}
    arrays.update({name: change(arrays[name]) for name, change in changes.items()})
    np.savez_compressed(path, **arrays)


@pytest.fixture
def prepared(tmp_path):
    lines = make_lines(5, 0, "train")
    path = path_of(tmp_path, "train")
    write_lines(path, lines)
    return path, lines


def test_lines_are_written_and_read_back(prepared):
    path, lines = prepared
    assert all(_same(a, b) for a, b in zip(read_lines(path), lines, strict=True))
    with np.load(path, allow_pickle=False) as archive:
        assert {name: archive[name].dtype.kind for name in archive} == {n: expected.dtype[0] for n, expected in ARRAYS.items()}


@pytest.mark.parametrize(("changes", "words"), [
    ({"dx": lambda a: a.astype(np.float32) * np.nan}, ["dx", "int16", "float32"]),
    ({"dx": lambda a: a[:-1]}, ["dy", "points"]), ({"pen_up": lambda a: a + 1}, ["pen_up", "0 or 1", "found 2"]),
    ({"offsets": lambda a: a[::-1]}, ["offsets", "climb"]), ({"offsets": lambda a: a[:0]}, ["offsets", "none"]),
    ({"offsets": lambda a: a + 1}, ["offsets", "found 1 to"]), ({"text": lambda a: a[1:]}, ["line_id", "4 lines", "found 5"]),
    ({"text": lambda a: np.where(np.arange(5) == 2, " ", a)}, ["a text for line made-train-0002", "empty"]),
    ({"text": lambda a: np.where(np.arange(5) == 3, "x" * 900, a)}, ["900 characters", "made-train-0003"]),
    ({"line_id": lambda a: a.reshape(5, 1)}, ["line_id", "(5, 1)"]),
    ({"text": lambda a: np.arange(5)}, ["text values", "int64"])])
def test_claims_of_a_prepared_file_are_checked(prepared, changes, words):
    path, _ = prepared
    _rewrite(path, **changes)
    check_error(DataFormatError, lambda: read_lines(path), "iam_ondb_full_train.npz", *words)


# Batches from files -------------------------------------------------------------------------------------

def _folder(root, counts):
    for split, count in counts.items():
        write_lines(path_of(root, split), make_lines(count, 0, split))


def test_a_prepared_corpus_is_found_and_labelled(tmp_path, monkeypatch):
    _folder(tmp_path, {"train": 20, "valid": 5, "test": 4})
    cfg = make_config(TASK, "ln", "smoke", {"source": "auto", "lines": 16})
    splits = TASK.data(cfg, tmp_path)
    assert splits.dataset.label == "IAM-OnDB, 20 lines, substitute"
    monkeypatch.setattr(corpus, "WHOLE_CORPUS", 29)
    assert TASK.data(cfg, tmp_path).dataset.label == "IAM-OnDB"
    assert {k: v["text"].shape[0] for k, v in splits.evaluation.items()} == {"train": 8, "valid": 5, "test": 4}
    monkeypatch.setenv("DUOLN_DATA", str(tmp_path))
    assert TASK.data(cfg).dataset.name == "IAM-OnDB"
    path_of(tmp_path, "valid").write_bytes(b"no zip")  # an error, and no fallback
    check_error(DataFormatError, lambda: TASK.data(cfg), "iam_ondb_full_valid.npz")
    path_of(tmp_path, "valid").unlink()
    check_error(DataError, lambda: TASK.data(cfg), "iam_ondb_full_valid.npz")


def test_points_are_standardised_cut_and_padded():
    line = Line("a", "ab#", np.array([[0, 0], [50, -37], [8, 0]]), np.array([0, 0, 1]))
    batch = data.as_batch([line], 4, 5)
    assert batch["mask"][:, 0].tolist() == [True, True, False, False]
    np.testing.assert_allclose(batch["target"][0, 0], [(50 - 8.1852) / 41.5577, (-37 - 0.1243) / 37.0368, 0], rtol=1e-6)
    assert batch["target"][:, 0, 2].tolist() == [0, 1, 0, 0]
    assert batch["text"].tolist() == [[0, 1, ALPHABET.unknown, PADDING, PADDING]]
    cut = data.as_batch([line], 1, 2)
    assert cut["target"].shape == (1, 1, 3) and cut["mask"].all() and cut["text"].tolist() == [[0, 1]]


# The corpus as it is distributed ------------------------------------------------------------------------

@pytest.fixture
def source(tmp_path):
    """Six forms of two lines each."""
    root = tmp_path / "iam"
    for k in range(6):
        form = f"a01-00{k}u"
        strokes, text = root / "lineStrokes" / "a01" / form[:7], root / "ascii" / "a01" / form[:7]
        strokes.mkdir(parents=True)
        text.mkdir(parents=True)
        for line in (1, 2):
            (strokes / f"{form}-0{line}.xml").write_text(XML)
        (text / f"{form}.txt").write_text("OCR:\n\nother text\n\nCSR:\n\nBy Tr\nCom%\n\n", newline="\r\n")
    _write_lists(root, "a01-000u a01-004u a01-005u", "a01-001u", "a01-003u", "a01-002u")
    return root


def test_the_corpus_is_prepared(source, tmp_path, capsys):
    assert cli.main(["data", "prepare", "handwriting", "--from", str(source), "--out", str(tmp_path / "d")]) == 0
    lines_of = {split: read_lines(path_of(tmp_path / "d", split)) for split in corpus.SPLITS}
    assert {split: len(lines) for split, lines in lines_of.items()} == {"train": 6, "valid": 4, "test": 2}
    line = lines_of["train"][0]
    assert line.offsets.tolist() == [[0, 0], [4, -3], [6, 13], [20, 0], [1, 1], [4, 1]]
    assert line.pen_up.tolist() == [0, 0, 1, 0, 0, 1] and line.text == "By Tr" and line.name.endswith("u-01")
    assert len({a.name for part in lines_of.values() for a in part}) == 12


def test_official_lists_are_followed(source, tmp_path):
    _write_lists(source, "a01-001u", "a01-004u", "a01-002u", "a01-000u")
    written = iam.prepare(source, tmp_path / "d")
    names = {split: [line.name for line in read_lines(path_of(tmp_path / "d", split))] for split in corpus.SPLITS}
    assert names == {"train": ["a01-001u-01", "a01-001u-02"], "test": ["a01-000u-01", "a01-000u-02"],
                     "valid": ["a01-004u-01", "a01-004u-02", "a01-002u-01", "a01-002u-02"]}
    assert written[-1].read_text() == "a01-003u: in none of the official lists\na01-005u: in none of the official lists\n"


def _write_lists(source, train, valid_one, valid_two, test):
    for name, forms in zip(("trainset", "testset_v", "testset_t", "testset_f"), (train, valid_one, valid_two, test), strict=True):
        (source / f"{name}.txt").write_text("\n".join(forms.split()))


def test_pages_of_one_text_may_stand_in_different_lists(tmp_path):
    """IAM-OnDB has a01-053, a01-053x and a01-053z in three lists."""
    _write_lists(tmp_path, "a01-053z", "a01-001z", "a01-053x", "a01-053")
    parts = iam.split_forms(tmp_path, {"a01-001z", "a01-053", "a01-053x", "a01-053z"})
    assert parts == {"train": ["a01-053z"], "valid": ["a01-001z", "a01-053x"], "test": ["a01-053"]}


@pytest.mark.parametrize(("lists", "words"), [
    (("a01-000u", "a01-001u", "b02", "a01-002u"), ["testset_t.txt", "names of forms", "none"]),
    (("a01-000u", "a01-001u", "a01-003u", "a01-000u"), ["testset_f.txt", "a01-000u", "also in trainset.txt"])])
def test_official_lists_that_cannot_be_followed(source, tmp_path, lists, words):
    _write_lists(source, *lists)
    check_error(DataFormatError, lambda: iam.prepare(source, tmp_path / "d"), *words)


def test_forms_that_do_not_match_are_left_out_and_named(source, tmp_path):
    (source / "ascii/a01/a01-000/a01-000u.txt").write_text("CSR:\nonly one")
    (source / "ascii/a01/a01-004/a01-004u.txt").unlink()
    written = iam.prepare(source, tmp_path / "d")
    assert written[-1].read_text().splitlines() == ["a01-000u: 2 stroke files and 1 lines of transcript",
                                                    "a01-004u: 2 stroke files and no transcript"]


@pytest.mark.parametrize(("old", "new", "words"), [
    ("</StrokeSet>", "", ["well-formed", "mismatched tag"]), (XML[300:], "", ["well-formed"]),
    (XML, "", ["well-formed", "no element"]),
    ('x="104"', 'x="nan"', ["point's x", "nan"]), ('x="104"', 'x="1e999"', ["point's x"]), ('x="104"', "", ["point's x", "''"]),
    ('y="47"', 'y="4 7"', ["point's y", "'4 7'"]), ('x="104"', 'x="99999"', ["distances", "99899"]),
    ('ISO-8859-1', "no-such", ["well-formed", "no-such"]), ('ISO-8859-1', "Shift_JIS", ["well-formed", "encoding"]),
    ('<Point x="130" y="60" time="2.0"/><Point x="131" y="61" time="2.1"/><Point x="135" y="62" time="2.2"/>', "",
     ["a stroke with points"])])
def test_damaged_strokes(source, tmp_path, old, new, words):
    path = source / "lineStrokes/a01/a01-002/a01-002u-01.xml"
    path.write_text(XML.replace(old, new))
    check_error(DataFormatError, lambda: iam.prepare(source, tmp_path / "d"), "a01-002u-01.xml", *words)


@pytest.mark.parametrize(("text", "words"), [
    ("OCR:\nno other part", ["CSR:", "none"]), ("CSR:\n\n\n", ["lines with text", "none"]),
    ("CSR:\nBy Trevor\nCo", ["9 characters", "6 points"])])
def test_damaged_transcripts(source, tmp_path, text, words):
    (source / "ascii/a01/a01-002/a01-002u.txt").write_text(text)
    check_error(DataFormatError, lambda: iam.prepare(source, tmp_path / "d"), "a01-002u", *words)


def test_folders_that_are_no_corpus(source, tmp_path):
    check_error(DataMissingError, lambda: iam.prepare(tmp_path, tmp_path / "d"), "lineStrokes")
    for path in source.rglob("*.xml"):
        path.unlink()
    check_error(DataMissingError, lambda: iam.prepare(source, tmp_path / "d"), "FORM-NN.xml")
    (source / "testset_v.txt").unlink()
    check_error(DataMissingError, lambda: iam.split_forms(source, {"a01-000u"}), "testset_v.txt", "found none")
