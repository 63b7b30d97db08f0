"""Questions as files: whole ones, what is wrong with damaged ones, and how they become batches."""

import io
import tarfile
from collections import Counter
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
from task_checks import root_with

from duoln.errors import DataError, DataFormatError, UsageError
from duoln.plugins.attentive_reader import batches, corpus, data
from duoln.plugins.attentive_reader.corpus import Cut
from duoln.plugins.attentive_reader.questions import (
    Question,
    entity_places,
    most_frequent_entity,
    most_relevant,
    near_entities,
    parse,
    passage_questions,
    split_sentences,
)
from duoln.plugins.attentive_reader.task import AttentiveReader
from duoln.tasks import make_config
from duoln.testing import check_error

TASK = AttentiveReader()
LARGE = root_with(data.PLACES["novels-large"][0])
WHOLE = Cut(None, None, "kept")

TEXT = ("http://somewhere/a\n\n@entity3 met @entity1 in rome . it rained ! did @entity1 sing ? @entity2 heard\n\n"
        "in Rome @placeholder met @entity1 .\n\n@entity3\n\n@entity1:a name: and more\n@entity3:Another\n@entity2:é\n")


def _question(k=0, answer="@entity3", passage="@entity3 met @entity1 . @entity1 and @entity3 sang ."):
    return f"source {k}\n\n{passage}\n\n@placeholder met @entity1 . {k}\n\n{answer}\n\n@entity1:a\n@entity3:b\n"


def _tar(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as archived:
        for name, text in files.items():
            content = text.encode() if isinstance(text, str) else text
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archived.addfile(info, io.BytesIO(content))
    return path


def _files(train=6, valid=3, test=2):
    return {f"q/{folder}/{k:04d}.question": _question(k) for folder, count in
            (("training", train), ("validation", valid), ("test", test)) for k in range(count)}


# A question ---------------------------------------------------------------------------------------------

def test_what_a_passage_asks_by_itself():
    text = ("@entity1 met @entity2 in rome . it rained on @entity3 for days . did the long war end @entity3 or @entity1 ? "
            "@entity9 sang with nobody at all ! so @entity2 said .")
    passage = text.split()
    questions = list(passage_questions(passage, 1))
    assert [" ".join(q.question) for q in questions] == ["did the long war end @placeholder or @entity1 ?"]
    assert questions[0].answer == "@entity3" and questions[0].passage == passage[:13]
    assert list(passage_questions(passage, 3)) == list(passage_questions([], 0)) == []


def test_a_question():
    question = parse("a.question", TEXT.encode())
    assert question.passage[:5] == ["@entity3", "met", "@entity1", "in", "rome"] and len(question.passage) == 15
    assert question.question == ["in", "rome", "@placeholder", "met", "@entity1", "."] and question.answer == "@entity3"
    bare = parse("a.question", TEXT.partition("@entity1:")[0].encode())  # the names are left out in some corpora
    assert bare == question


@pytest.mark.parametrize(("change", "words"), [
    (lambda t: t.replace(b"@entity3\n\n", b"@entity9\n\n"), ["line 7", "entity of the passage", "@entity9"]),
    (lambda t: t.replace(b"@entity3\n\n", b"rome\n\n"), ["line 7", "an answer @entityN", "'rome'"]),
    (lambda t: t.replace(b"@entity3\n\n", b"@entity3 @entity1\n\n"), ["line 7", "an answer @entityN"]),
    (lambda t: t.replace(b"@entity3\n\n@entity1:", b"\n\n@entity1:"), ["line 7", "an answer @entityN", "''"]),
    (lambda t: t.replace(b"@placeholder", b"someone"), ["line 5", "a question with @placeholder", "someone"]),
    (lambda t: t.replace(t.split(b"\n\n")[1], b"  "), ["line 3", "a passage", "an empty one"]),
    (lambda t: b"\n\n".join(t.split(b"\n\n")[:4]), ["line 7", "5 parts", "4 of them"]),
    (lambda t: t.replace(b"\n\n", b"\r\n\r\n"), ["5 parts", "1 of them"]),
    (lambda t: b"", ["line 1", "5 parts", "0 of them"]),
    (lambda t: t.replace(b"in rome .", b"in\nrome ."), ["line 4", "a passage on one line", "rome ."]),
    (lambda t: t.replace(b"in rome", b"in r\xf6me"), ["line 3", f"byte {TEXT.index('rome') + 1}", "UTF-8", "0xf6"]),
    (lambda t: t.replace(b"@entity3:Another", b"Another"), ["line 10", "@entityN:name", "'Another'"]),
])
def test_what_is_wrong_with_a_question(change, words):
    damaged = change(TEXT.encode())
    assert damaged != TEXT.encode()
    check_error(DataFormatError, lambda: parse("deep/a.question", damaged), "deep/a.question", "at byte", *words)


def test_sentences_and_what_is_read_of_them():
    passage = parse("a", TEXT.encode()).passage
    assert [" ".join(s) for s in split_sentences(passage)] == [
        "@entity3 met @entity1 in rome .", "it rained !", "did @entity1 sing ?", "@entity2 heard"]
    asked = ["in", "rome", "@placeholder", "met", "@entity1", "."]
    assert most_relevant(passage, asked, 2) == ["@entity3", "met", "@entity1", "in", "rome", ".", "did", "@entity1", "sing", "?"]
    assert most_relevant(passage, asked, 9) == passage
    assert most_relevant(passage, ["heard"], 1) == ["@entity2", "heard"]
    assert most_relevant(passage, ["nothing"], 1) == split_sentences(passage)[0]  # the first of equals
    assert near_entities(["a", "b", "@entity1", "c", "d", "e", "f", "@entity2", "g"], 1) == ["b", "@entity1", "c", "f", "@entity2", "g"]
    assert near_entities(["a", "b", "@entity1", "c"], 0) == ["@entity1"] and near_entities(["a"], 3) == []
    assert entity_places(["@entity1", "@placeholder", "a", "@entity", "@entity22", "@entity3x"]) == [0, 4]
    assert Cut(2, 0, "dropped")(parse("a", TEXT.encode())) == (["@entity3", "@entity1"], asked[:-1])
    assert most_frequent_entity(passage) == "@entity1"
    assert most_frequent_entity(["@entity2", "@entity1", "@entity1", "@entity2"]) == "@entity2"


# Folders and archives -----------------------------------------------------------------------------------

def test_folder_and_tar_are_read_alike(tmp_path):
    files = _files()
    for name, text in files.items():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    backwards = dict(reversed(files.items()))
    kinds = [tmp_path / "folder", _tar(tmp_path / "a.tar", backwards, "w"), _tar(tmp_path / "a.tgz", files)]
    rest = None
    for path in kinds:
        read = corpus.read(path, WHOLE)
        texts = {split: [[read.words[w] for w in s.questions.values[a:b]] for a, b in
                         zip(s.questions.ends[:-1], s.questions.ends[1:], strict=True)] for split, s in read.splits.items()}
        assert {split: [t[-1] for t in lines] for split, lines in texts.items()} == {
            "train": list("012345"), "valid": list("012"), "test": list("01")}
        rest = rest or texts
        assert texts == rest
        assert [read.words[a] for a in read.splits["train"].answers] == ["@entity3"] * 6
        assert [read.words[a] for a in read.splits["test"].most_frequent] == ["@entity3"] * 2


@pytest.mark.parametrize(("files", "words"), [
    ({**_files(), "../../outside/training/x.question": _question()}, ["'../../outside/training/x.question'", "leads out"]),
    ({"q/training/x.question": "x" * (1 << 17) + "y"}, ["at most 131072", "131073"]),
    ({"q/x.question": _question()}, ["training, validation, test", "'q'"]),
    ({"q/training/x.question": "no parts"}, ["x.question", "line 1", "5 parts"]),
    ({"q/training/x.question": _question()}, ["none in validation"]), ({"README": "nothing"}, ["none in training"])])
def test_what_is_wrong_with_an_archive(tmp_path, files, words):
    """Besides what is wrong with any tar archive."""
    path = _tar(tmp_path / "a.tar", files, "w")
    check_error(DataFormatError, lambda: corpus.read(path, WHOLE), str(path), "at byte", *words)


# Words --------------------------------------------------------------------------------------------------

def test_words_of_the_training_set_that_occur_often_enough(tmp_path):
    read = corpus.read(_tar(tmp_path / "a.tgz", _files()), WHOLE)
    words = corpus.count_words(read, "a.tgz", 20, 2)
    counts = Counter(w for k in range(6) for w in " ".join(_question(k).split("\n\n")[1:3]).split())
    assert set(words.words) == {w for w, n in counts.items() if n > 1}  # "0" to "5" occur once each
    assert [counts[w] for w in words.words] == sorted((counts[w] for w in words.words), reverse=True)
    assert {words.words[row - 4] for row in words.entities} == {"@entity1", "@entity3"} and words.rows == 20
    parts = corpus.encode(read, words)
    assert (parts["valid"].questions.values == corpus.UNKNOWN).sum() == 3  # their numbers
    check_error(DataError, lambda: corpus.count_words(read, "a.tgz", 10, 2), "a.tgz", "at most 6 words", "found 7", "11")
    assert corpus.count_words(read, "a.tgz", 11, 2).rows == 11
    rare = corpus.count_words(read, "a.tgz", 20, 1000)
    assert set(rare.words) == {"@entity1", "@entity3"}  # places for names, however rare


# Batches ------------------------------------------------------------------------------------------------

def _config(**settings):
    return make_config(TASK, "ln", "smoke", {"table": 600, "batch_size": 4, "last_batch": "kept", "dropout": "paper",
                                     "sentences": 2, "window": None, "width": 16, "hidden": 16, **settings})


def test_a_batch_is_its_questions_with_entities_permuted(tmp_path):
    cfg = _config(corpus=str(_tar(tmp_path / "a.tgz", _files())), batch_size=3, dropout="none", pad_multiple=1,
                  sentences=None, last_token="dropped")
    splits = TASK.data(cfg)
    assert splits.dataset.provenance == "substitute" and splits.steps_per_epoch == 2
    plain = corpus.read(tmp_path / "a.tgz", Cut(None, None, "dropped"))
    words = corpus.count_words(plain, "", 600, 2)
    parts = corpus.encode(plain, words)["train"]
    seen = set()
    for step in range(12):
        batch = splits.train(step)
        lengths = parts.passages.lengths
        assert batch["passage"].shape == (lengths.max() + 1, 3) and batch["passage_mask"].sum() == lengths[:3].sum()
        whole = parts.passages.values[:lengths[0]]
        passage = batch["passage"][:len(whole), 0]
        is_entity = np.isin(whole, words.entities)
        assert np.array_equal(whole[~is_entity], passage[~is_entity])
        moved = dict(zip(whole[is_entity].tolist(), passage[is_entity].tolist(), strict=True))
        assert sorted(moved.values()) == sorted(moved) == sorted(words.entities.tolist())
        assert batch["answer"][0] == moved[parts.answers[step % 2 * 3]]
        seen.add(tuple(moved.values()))
        assert not batch["passage"][~batch["passage_mask"]].any()
    assert len(seen) == 2  # both bijections of two entities


@pytest.mark.long
@pytest.mark.parametrize("order", ["sequential", "by-length"])
def test_orders(order):
    settings = {"order": order, "dropout": "none", "sentences": None, "batch_size": 6}
    splits = TASK.data(_config(**settings))
    count = data.SIZES["train"] // 6
    assert splits.steps_per_epoch == count
    passes = [[tuple(map(tuple, splits.train(k)["passage_mask"].sum(0)[None])) for k in range(e * count, (e + 1) * count)]
              for e in range(2)]
    assert (passes[0] == passes[1]) == (order == "sequential")
    split = corpus.encode(*_made(None))["train"]
    training = data.Training(split, np.array([], np.int32), 600, 6, 0, order, 1, None)
    rows = training._order(1)
    assert rows.shape == (count, 6) and len(set(rows.ravel())) == rows.size
    if order == "by-length":
        spread = [np.ptp(split.passages.lengths[r]) for r in rows]
        unsorted_spread = [np.ptp(split.passages.lengths[r]) for r in rows.ravel()[np.argsort(rows.ravel())].reshape(rows.shape)]
        assert np.mean(spread) <= np.mean(unsorted_spread)


def _made(sentences):
    questions = data.make(Cut(sentences, None, "dropped"))
    return questions, corpus.count_words(questions, "made", 600, 2)


@pytest.mark.long
def test_lengths_come_from_a_small_set_and_masks_of_dropout_ride_along():
    splits = TASK.data(_config(keep=0.7, batch_size=16))
    for step in range(20):
        batch = splits.train(step)
        assert batch["passage"].shape[0] % 16 == 0 and batch["question"].shape[0] % 16 == 0
        assert batch["keep_passage"].shape == (*batch["passage"].shape, 16) and batch["keep_passage"].dtype == bool
        assert batch["keep_joint"].shape == (16, 16)
    assert abs(batch["keep_passage"].mean() - 0.7) < 0.02
    assert not np.array_equal(splits.train(3)["keep_joint"], splits.train(4)["keep_joint"])
    assert "keep_joint" not in TASK.data(_config(dropout="none")).train(0)


@pytest.mark.long
def test_evaluated_splits_hold_every_question_or_whole_batches():
    kept = TASK.data(_config(batch_size=7, last_batch="kept", evaluate_questions=20)).evaluation
    dropped = TASK.data(_config(batch_size=7, last_batch="dropped", evaluate_questions=20)).evaluation
    assert [len(kept[s]["answer"]) for s in ("train", "valid")] == [20, 64]
    assert [len(dropped[s]["answer"]) for s in ("train", "valid")] == [14, 63]
    sizes = [len(b["answer"]) for b in batches.evaluation_batches(kept["valid"])]
    assert sizes == [7] * 9 + [1]


@pytest.mark.long
def test_settings_that_do_not_fit(tmp_path):
    for settings, words in (({"batch_size": 10 ** 6}, ["batch_size", "320"]),
                            ({"sentences": 0}, ["sentences", "at least 1"]), ({"window": -1}, ["window", "at least 0"]),
                            ({"pad_multiple": 0}, ["pad_multiple"]), ({"table": 4}, ["table", "at least 5"]),
                            ({"batch_size": 100, "last_batch": "dropped"}, ["valid", "last_batch=kept"])):
        check_error(UsageError, lambda s=settings: TASK.data(_config(**s)), *words)
    check_error(DataError, lambda: TASK.data(_config(table=100)), "made questions", "table")


@pytest.mark.long
def test_where_corpora_are_looked_for(tmp_path, monkeypatch):
    (tmp_path / "cloze").mkdir()
    cfg = _config(source="auto", batch_size=2)
    assert TASK.data(cfg, tmp_path).dataset.provenance == "synthetic"
    _tar(tmp_path / "cloze" / "novel_cloze_questions.tar.gz", _files())
    assert TASK.data(cfg, tmp_path).dataset == data.DATASETS["novels"]
    _tar(tmp_path / "cloze" / "cnn.tgz", _files())
    monkeypatch.setenv("DUOLN_DATA", str(tmp_path))
    assert TASK.data(cfg).dataset == data.DATASETS["cnn"] and TASK.data(cfg).dataset.provenance == "original"
    _tar(tmp_path / "cloze" / "novel_cloze_large.tar.gz", _files(8))
    large = TASK.data(_config(source="novels-large", batch_size=2))
    assert large.dataset.label == "novel cloze, large, substitute" and large.steps_per_epoch == 4
    assert TASK.data(cfg).dataset == data.DATASETS["cnn"]  # the large set is read only where it is asked for
    (tmp_path / "cloze" / "cnn.tgz").write_bytes(b"damaged")
    check_error(DataFormatError, lambda: TASK.data(cfg), "cnn.tgz")  # never silently another corpus


@pytest.mark.skipif(LARGE is None, reason="DUOLN_DATA has no large novel cloze")
def test_some_questions_of_the_real_large_set():
    with closing(corpus.members(LARGE / data.PLACES["novels-large"][0])) as members:
        for member in islice(members, 300):
            question = parse(member.where, member.content)
            assert member.split in ("train", "valid", "test") and 150 <= len(question.passage) <= 700
            assert 4 <= len({question.passage[k] for k in entity_places(question.passage)}) <= 15


def test_more_words_than_are_believed():
    collector = corpus.Collector(WHOLE, "a.tgz", most=9)
    question = Question(["@entity1", "sang", "."], ["@placeholder", "sang"], "@entity1")
    collector.add("train", "1", question)
    check_error(DataFormatError, lambda: collector.add("train", "2", question), "a.tgz", "at most 9 words")
