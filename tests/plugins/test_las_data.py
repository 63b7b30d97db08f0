"""LAS's corpora: read as they are distributed, refused where they are damaged, and batches by length."""

import numpy as np
import pytest
from test_las_audio import FLAC, TONE, write_flac, write_sphere, write_wav

from duoln import cli
from duoln.errors import DataError, DataFormatError, DataMissingError, UsageError
from duoln.plugins.las import data, distributed, spoken
from duoln.plugins.las.corpus import LETTERS, TIMIT
from duoln.plugins.las.features import features
from duoln.plugins.las.spoken import synthetic_corpus
from duoln.plugins.las.task import Las
from duoln.tasks import make_config
from duoln.testing import check_error

TASK = Las()


@pytest.fixture(autouse=True)
def _few_utterances(monkeypatch):
    monkeypatch.setattr(spoken, "COUNTS", {"train": 30, "dev": 7, "test": 7})


def read(source, root):
    return data.load(make_config(TASK, "none", "smoke", {"source": source, "longest": 100}), root)[0]


# TIMIT --------------------------------------------------------------------------------------------------

def make_timit(root, write=write_sphere):
    for place, sentences in (("TRAIN/DR1/FCJF0", ("SA1", "SX37", "SI1027")), ("TEST/DR1/FAKS0", ("SI943",)),
                             ("TEST/DR1/FELC0", ("SX36",)), ("TEST/DR2/FPAS9", ("SX1",))):
        for name in sentences:
            write(root / "timit" / place / f"{name}.WAV")
            (root / "timit" / place / f"{name}.PHN").write_text("0 800 h#\n800 1600 ix\n1600 1700 q\n1700 2400 pcl\n2400 4000 p\n")
    return root


@pytest.mark.parametrize("write", [write_sphere, write_wav])
def test_timit(tmp_path, write):
    corpus = read("timit", make_timit(tmp_path, write))
    assert corpus.dataset == ("TIMIT, 2 utterances", "substitute") and corpus.alphabet is TIMIT and corpus.rate == 16000
    assert {name: [u.name.rpartition("/")[2] for u in part] for name, part in corpus.sets.items()} == {
        "train": ["SI1027.PHN", "SX37.PHN"], "dev": ["SI943.PHN"], "test": ["SX36.PHN"]}  # no SA, no other test speaker
    one = corpus.sets["train"][0]
    assert one.symbols == ("sil", "ih", "sil", "p") and one.length == len(TONE) == len(one.read())


@pytest.mark.parametrize(("content", "words"), [
    (b"0 800 h#\n800 1600 xx\n", ["SX37.PHN", "line 2", "61 labels", "'xx'"]), (b"0 800\n", ["SX37.PHN", "phone", "0 800"]),
    (b"0 a h#\n", ["first sample"]), (b"", ["SX37.PHN", "phones", "none"]), (b"0 1 q\n", ["phones"]), (b"\xff", ["utf-8"])])
def test_damaged_labels(tmp_path, content, words):
    make_timit(tmp_path)
    (tmp_path / "timit/TRAIN/DR1/FCJF0/SX37.PHN").write_bytes(content)
    check_error(DataFormatError, lambda: read("timit", tmp_path), *words)


def test_what_timit_lacks(tmp_path):
    make_timit(tmp_path)
    (tmp_path / "timit/TRAIN/DR1/FCJF0/SX37.WAV").unlink()
    check_error(DataMissingError, lambda: read("timit", tmp_path), "SX37.WAV", "missing")
    for path in (tmp_path / "timit/TEST").rglob("*.PHN"):
        path.unlink()
    make_timit(tmp_path / "other")
    (tmp_path / "other/timit/TEST").rename(tmp_path / "other/timit/ELSE")
    check_error(DataMissingError, lambda: read("timit", tmp_path / "other"), "dev set")
    check_error(DataMissingError, lambda: read("timit", tmp_path / "nowhere"), "timit", "nowhere", "DUOLN_DATA")


# LibriSpeech --------------------------------------------------------------------------------------------

def make_librispeech(root, text="MISTER QUILTER'S MANNER", write=write_flac):
    for part, chapter in (("train-clean-100", "84-121123"), ("dev-clean", "1272-128104"), ("test-clean", "61-70968")):
        folder = root / "LibriSpeech" / part / chapter.split("-")[0] / chapter.split("-")[1]
        for k in range(2):
            write(folder / f"{chapter}-000{k}.flac")
        (folder / f"{chapter}.trans.txt").write_text(f"{chapter}-0000 {text}\n{chapter}-0001 YES\n")
    return root


@FLAC
def test_librispeech(tmp_path):
    make_librispeech(tmp_path)
    corpus = read("librispeech", tmp_path)
    assert corpus.dataset == ("LibriSpeech (train-clean-100)", "original") and corpus.alphabet is LETTERS
    one = corpus.sets["dev"][0]
    assert "".join(one.symbols) == "mister quilter's manner" and one.length == len(TONE) == len(one.read())
    assert {name: len(part) for name, part in corpus.sets.items()} == {"train": 2, "dev": 2, "test": 2}
    check_error(DataFormatError, lambda: read("librispeech", make_librispeech(tmp_path, "CAFÉ 9")),
                "84-121123-0000", "letters", "'é'")
    check_error(DataMissingError, lambda: read("librispeech", (tmp_path / "LibriSpeech" / "x").parent.parent / "x"))


@pytest.mark.parametrize(("line", "words"), [
    ("84-121123-0000", ["84-121123-NUMBER and words"]), ("84-9-0000 YES", ["NUMBER", "84-9-0000"]),
    ("84-121123-../../x YES", ["NUMBER"]), ("84-121123-0007 YES", ["84-121123-0007.flac", "missing"])])
def test_damaged_transcripts(tmp_path, line, words):
    make_librispeech(tmp_path, write=write_wav)
    path = tmp_path / "LibriSpeech/train-clean-100/84/121123/84-121123.trans.txt"
    path.write_text(line + "\n")
    check_error(DataError, lambda: distributed.read_chapter(path), *words)


# Spoken digits ------------------------------------------------------------------------------------------

def digits(takes=4, **changes):
    """A file like the spoken digits', of two words and so many takes."""
    words = ["zero", "one"] * takes
    clips = [TONE[:400 + 10 * k] for k in range(len(words))]
    arrays = {"audio": np.concatenate(clips).astype(np.int16), "offsets": np.cumsum([0, *map(len, clips)]),
              "word": np.array(words), "take": np.repeat(np.arange(takes, dtype=np.int16), 2), "sample_rate": np.int32(8000)}
    return {name: changes.get(name, lambda a: a)(a) for name, a in arrays.items()}


def make_digits(root, **changes):
    (root / "speech").mkdir(exist_ok=True)
    np.savez_compressed(root / "speech/fsdd_train.npz", **digits(**changes))
    np.savez_compressed(root / "speech/fsdd_test.npz", **digits(1))
    return root


def test_digits_are_spelled_and_the_last_takes_are_the_dev_set(tmp_path):
    for source in ("digits", "auto"):
        corpus = read(source, make_digits(tmp_path))
        assert corpus.dataset == ("spoken digits, spelled", "substitute") and corpus.rate == data.rate_of(source) == 8000
    assert {name: len(part) for name, part in corpus.sets.items()} == {"train": 4, "dev": 4, "test": 2}
    assert corpus.sets["dev"][1].symbols == tuple("one") and corpus.sets["dev"][1].length == 450
    assert np.array_equal(corpus.sets["dev"][1].read() * 2 ** 15, TONE[:450])
    assert read("auto", tmp_path / "nowhere").dataset.provenance == "synthetic"
    check_error(DataMissingError, lambda: read("digits", tmp_path / "nowhere"), "fsdd_train.npz")


def _no_unicode(words):
    """Words whose first four bytes are not a character."""
    changed = np.ascontiguousarray(words)
    changed.view(np.uint32)[0] = 0x11_0000
    return changed


@pytest.mark.parametrize(("changes", "words"), [
    ({"word": _no_unicode}, ["word", "characters of Unicode"]),
    ({"sample_rate": lambda a: np.int32(16000)}, ["sample_rate", "8000", "16000"]),
    ({"word": lambda a: np.where(a == "one", "1", a)}, ["utterance 1", "letters", "'1'"]),
    ({"word": lambda a: np.where(a == "one", "", a)}, ["utterance 1", "empty"]),
    ({"word": lambda a: a[1:]}, ["take", "7 utterances", "found 8"]), ({"take": lambda a: a[1:]}, ["take", "8 utterances"]),
    ({"take": lambda a: a // 2}, ["take", "more than 2"]), ({"offsets": lambda a: a[::-1]}, ["offsets", "climb"]),
    ({"offsets": lambda a: a[:0]}, ["offsets", "none"]), ({"offsets": lambda a: np.where(a == a[1], a[2], a)}, ["smallest step 0"]),
    ({"audio": lambda a: a.astype(np.float32) * np.nan}, ["audio", "int16", "float32"]),
    ({"audio": lambda a: a[:-1]}, ["offsets", "climb"])])
def test_claims_of_the_digits_are_checked(tmp_path, changes, words):
    check_error(DataFormatError, lambda: read("auto", make_digits(tmp_path, **changes)), "fsdd_train.npz", *words)


def test_a_clip_shorter_than_a_frame_is_named(tmp_path):
    make_digits(tmp_path, offsets=lambda a: np.where(np.arange(len(a)) == 1, 199, a))
    cfg = make_config(TASK, "none", "smoke", {"source": "digits", "batch_size": 2, "longest": 6})
    check_error(DataFormatError, lambda: TASK.data(cfg, tmp_path), "fsdd_train.npz: utterance 0", "25 ms", "199 samples at 8000")


def test_digits_are_made_of_their_recordings(tmp_path, capsys):
    for name in ("7_jackson_0", "7_jackson_4", "0_theo_5", "1_theo_6", "0_theo_7", "1_theo_12"):
        write_wav(tmp_path / f"in/{name}.wav", TONE[:900 + int(name[0])], 8000)
    (tmp_path / "in/notes.wav").write_bytes(b"no recording")
    assert cli.main(["data", "prepare", "las", "--from", str(tmp_path / "in"), "--out", str(tmp_path)]) == 0
    corpus = read("digits", tmp_path)
    assert {name: ["".join(u.symbols) for u in part] for name, part in corpus.sets.items()} == {
        "train": ["zero", "one"], "dev": ["zero", "one"], "test": ["seven", "seven"]}
    assert np.array_equal(corpus.sets["test"][0].read() * 2 ** 15, TONE[:907])
    write_wav(tmp_path / "in/3_theo_9.wav", TONE, 16000)
    assert cli.main(["data", "prepare", "las", "--from", str(tmp_path / "in"), "--out", str(tmp_path)]) == 4
    assert "3_theo_9.wav" in capsys.readouterr().err
    check_error(DataMissingError, lambda: TASK.prepare(tmp_path / "speech", tmp_path), "speech", "found none for train")


def test_recordings_are_joined(tmp_path):
    cfg = make_config(TASK, "none", "smoke", {"source": "digits", "words": 3, "longest": 24})
    single, joined = read("digits", make_digits(tmp_path)), data.load(cfg, tmp_path)[0]
    assert joined.dataset == ("spoken digits, spelled, 3 a clip", "substitute")
    assert {name: len(part) for name, part in joined.sets.items()} == {"train": 4, "dev": 4, "test": 2}
    for name, part in joined.sets.items():
        known = {u.length: (u.symbols, u.read()) for u in single.sets[name]}
        for clip in part:
            assert clip.length == len(clip.read()) and "".join(clip.symbols).count(" ") == 2
            first = next(n for n, (_, samples) in known.items() if np.array_equal(clip.read()[:n], samples)
                         and "".join(clip.symbols).startswith("".join(known[n][0]) + " "))
            assert first in known
    other_seed = data.load(make_config(TASK, "none", "smoke", {"source": "digits", "words": 3, "longest": 24, "seed": 1}), tmp_path)[0]
    assert [u.symbols for u in other_seed.sets["test"]] == [u.symbols for u in joined.sets["test"]]
    assert [u.length for u in other_seed.sets["train"]] == [u.length for u in joined.sets["train"]]
    phones = make_config(TASK, "none", "smoke", {"source": "timit", "words": 2})
    check_error(UsageError, lambda: data.load(phones, make_timit(tmp_path)), "words", "phones", "2")


# Batches ------------------------------------------------------------------------------------------------

def _cfg(**settings):
    return make_config(TASK, "none", "smoke", {"batch_size": 4, "buckets": 3, **settings})


def test_batches_hold_the_features_and_labels_of_their_utterances():
    cfg = _cfg(noise=0.0, dropout=0.0, sampling=0.0)
    utterances = synthetic_corpus().sets["train"]
    known = {tuple(LETTERS.encode(u.symbols)): features(u.read(), 8000, cfg.mels, u.name) for u in utterances}
    splits = TASK.data(cfg)
    shapes, seen = set(), 0
    assert splits.steps_per_epoch == 6  # ten a bucket, two batches of four
    for step in range(splits.steps_per_epoch):
        batch = splits.train(step)
        assert batch.keys() == {"x", "mask", "labels", "weight"}
        shapes.add(batch["x"].shape)
        assert batch["x"].shape[0] % 2 == 0
        for b in range(4):
            labels = batch["labels"][:, b][batch["weight"][:, b] > 0]
            assert labels[-1] == 0 and (labels[:-1] > 0).all() and not batch["labels"][len(labels):, b].any()
            assert batch["weight"][:, b].sum() == pytest.approx(1)
            frames = batch["x"][batch["mask"][:, b], b]
            assert not batch["x"][~batch["mask"][:, b], b].any()
            near = [u for u in utterances if tuple(LETTERS.encode(u.symbols)) == tuple(labels[:-1])]
            assert any(np.array_equal(frames, features(u.read(), 8000, cfg.mels, u.name)) for u in near)
            seen += 1
    assert len(shapes) == 3 and seen == 24 and known


def test_every_epoch_has_another_order_and_every_step_other_noise():
    cfg = _cfg(dropout=0.5, sampling=0.25)
    train = TASK.data(cfg).train
    batches = {k: train(k) for k in range(12)}
    again = TASK.data(cfg).train(7)
    assert all(np.array_equal(again[name], batches[7][name]) for name in again)
    assert not np.array_equal(batches[0]["x"], batches[6]["x"])
    one = batches[3]
    steps, rows, _ = one["x"].shape
    assert one["keep_listener0"].shape == (steps, rows, 16) and one["keep_listener1"].shape == (steps // 2, rows, 16)
    assert one["keep_speller0"].shape == (len(one["labels"]), rows, 12) and set(np.unique(one["keep_listener0"])) == {0, 2}
    assert one["coin"].dtype == bool and one["gumbel"].shape == (*one["labels"].shape, LETTERS.classes)
    assert np.isfinite(one["gumbel"]).all()


def test_gumbel_noise_draws_from_a_softmax():
    """argmax(log p + noise) has the distribution p (Gumbel 1954)."""
    cfg = _cfg(sampling=0.5)
    train = TASK.data(cfg).train
    many = np.concatenate([train(k)["gumbel"].reshape(-1, LETTERS.classes)[:, :3] for k in range(100)])
    p = np.array([0.6, 0.3, 0.1])
    drawn = np.bincount((np.log(p) + many).argmax(1), minlength=3) / len(many)
    np.testing.assert_allclose(drawn, p, atol=4 * np.sqrt(0.25 / len(many)))
    assert many.mean() == pytest.approx(np.euler_gamma, abs=0.1)


def test_noise_has_the_deviation_that_is_asked_for():
    quiet, loud = (TASK.data(_cfg(noise=n)).train(2)["x"] for n in (0.0, 0.5))
    assert (loud - quiet).std() == pytest.approx(0.5, rel=0.05)


def test_a_whole_set_in_parts_is_the_set():
    splits = TASK.data(_cfg())
    split = splits.evaluation["dev"]
    parts = list(data.parts(split, 3))
    assert [p["x"].shape[1] for p in parts] == [3, 3, 1] and sum(p["mask"].sum() for p in parts) == len(split["x"])
    lengths = [int(n) for p in parts for n in p["mask"].sum(0)]
    assert lengths == sorted(lengths) == sorted(np.diff(split["x_starts"]).tolist())
    labels = sorted(tuple(p["labels"][p["weight"][:, b] > 0, b]) for p in parts for b in range(p["x"].shape[1]))
    utterances = synthetic_corpus().sets["dev"]
    assert labels == sorted((*LETTERS.encode(u.symbols), 0) for u in utterances)


def test_metrics_are_of_the_whole_set():
    """A recogniser that always writes the first letter, and by beam search the text itself."""
    splits = TASK.data(_cfg())
    split = splits.evaluation["dev"]
    texts = {p["x"].tobytes(): p["labels"] for p in data.parts(split, 64)}

    def predict(batch):
        rows = batch["x"].shape[1]
        if "labels" in batch:
            return np.full(rows, 2.0, np.float32)
        labels = texts[batch["x"].tobytes()]
        symbols = np.zeros((len(labels), rows, 3), np.float32)
        symbols[0, :, 0] = labels[0]
        symbols[:, :, 1] = labels
        return np.stack((symbols, np.tile(np.array([0, 0, 1.0]), (len(labels), rows, 1)).astype(np.float32)))

    metrics = TASK.metrics(predict, split)
    symbols = len(split["labels"])
    assert metrics == {"nll": 2.0, "per": 0.0, "wer": 0.0, "per_greedy": pytest.approx((symbols - 7) / symbols),
                     "wer_greedy": metrics["wer_greedy"]}


def test_of_the_training_set_the_loss_alone_is_evaluated():
    """On as many utterances as dev has, evenly spread; without the noise of training."""
    cfg = _cfg()
    train = TASK.data(cfg).evaluation["train"]
    utterances = data.evenly_spaced(synthetic_corpus().sets["train"], 7)
    assert train["label_starts"].tolist() == np.cumsum([0, *(len(u.symbols) for u in utterances)]).tolist()
    np.testing.assert_array_equal(train["x"][:train["x_starts"][1]],
                                  features(utterances[0].read(), 8000, cfg.mels, utterances[0].name))
    assert TASK.metrics(lambda batch: np.full(batch["labels"].shape[1], 3.0, np.float32), train) == {"nll": 3.0}


@pytest.mark.parametrize(("wrong", "words"), [
    ({"batch_size": 31}, ["batch_size", "30", "31"]), ({"buckets": 31}, ["at most 30 buckets", "31"]),
    ({"buckets": 0}, ["buckets", "0"]), ({"dropout": 1.0}, ["dropout", "1.0"]), ({"sampling": -0.1}, ["sampling"]),
    ({"noise": -1.0}, ["noise"]), ({"constant": np.inf}, ["constant"]), ({"pyramids": 0, "layers": 0}, ["one layer"]), ({"beam": 0}, ["beam"]),
    ({"longest": 0}, ["longest"]), ({"longest": 3}, ["longest", "at least 4", "found 3", "no search"]), ({"words": 0}, ["words", "0"])])
def test_settings_that_do_not_fit(wrong, words):
    check_error(UsageError, lambda: TASK.data(_cfg(**wrong)), *words)
