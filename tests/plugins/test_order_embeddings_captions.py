"""Captions in the place of image features: what is read, what is refused, batches and ranks with three captions each."""

from pathlib import Path

import numpy as np
import pytest
from task_checks import root_with

from duoln.errors import DataFormatError, DataMissingError
from duoln.plugins.order_embeddings import data, flickr8k
from duoln.plugins.order_embeddings.task import OrderEmbeddings
from duoln.tasks import Dataset, make_config
from duoln.testing import check_error

TASK = OrderEmbeddings()
REAL = root_with(flickr8k.features_in(Path()))
WORDS = ["the", "cat", "sat", "on", "a", "mat"]
SPLITS = ["train"] * 7 + ["dev"] * 3 + ["test"] * 4


def _arrays(width=6):
    rng = np.random.default_rng(0)
    captions = [[f"Two {WORDS[k % 6]} {WORDS[c]} picture{k} ." for c in range(3)] for k in range(len(SPLITS))]
    return {"features": rng.standard_normal((len(SPLITS), width)).astype(np.float16), "split": np.array(SPLITS),
            "name": np.array([f"{k}.jpg" for k in range(len(SPLITS))]), "captions": np.array(captions)}


def _write(root, **changes):
    path = flickr8k.features_in(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = _arrays()
    arrays.update({name: change(arrays[name]) for name, change in changes.items()})
    np.savez_compressed(path, **arrays)
    return arrays


def test_captions_and_features_of_each_split(tmp_path):
    arrays = _write(tmp_path)
    read = flickr8k.read_features(tmp_path, 6)
    assert read.dataset == Dataset("Flickr8k captions as features", "substitute")
    for name in ("train", "dev", "test"):
        part, rows = read.parts[name], np.flatnonzero(arrays["split"] == name)
        texts = [[read.words[w] for w in part.captions[i]] for i in range(len(part.captions))]
        assert texts == [caption.lower().split()[:-1] for row in rows for caption in arrays["captions"][row]]
        assert part.captions_each == 3
        stored = arrays["features"][rows].astype(np.float32)
        rows_read = part.features.rows(np.arange(len(rows)))
        np.testing.assert_allclose(rows_read, stored / np.linalg.norm(stored, axis=1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(("changes", "words"), [
    ({"features": lambda a: a[:, :5]}, ["features", "width 6", "image_size", "found 5"]),
    ({"features": lambda a: a.astype(np.float32)}, ["features", "float16", "float32"]),
    ({"split": lambda a: a[1:]}, ["split", "14 pictures", "found 13"]),
    ({"captions": lambda a: a[:, :2]}, ["captions", "3 captions a picture", "found 2"]),
    ({"captions": lambda a: a[1:]}, ["captions", "14 pictures", "found 13"]),
    ({"captions": lambda a: np.where(a == a[8, 1], " . !", a)}, ["captions[8, 1]", "word in it", "' . !'"]),
    ({"split": lambda a: np.where(a == "dev", "val", a)}, ["split[7]", "train, dev, test", "'val'"]),
    ({"split": lambda a: np.where(a == "dev", "test", a)}, ["split", "pictures of dev", "none"])])
def test_claims_of_the_file_are_checked(tmp_path, changes, words):
    _write(tmp_path, **changes)
    check_error(DataFormatError, lambda: flickr8k.read_features(tmp_path, 6), flickr8k.FEATURE_FILE, *words)


def _config(**settings):
    return make_config(TASK, "ln", "smoke", {"source": "flickr8k-captions", "image_size": 6, "batch_size": 3, **settings})


def test_features_without_a_direction(tmp_path):
    _write(tmp_path, features=lambda a: np.where(np.arange(len(a))[:, None] == 8, np.nan, a).astype(np.float16))
    check_error(DataFormatError, lambda: TASK.data(_config(), tmp_path), flickr8k.FEATURE_FILE, "features of dev", "row 1", "nan")


@pytest.mark.long
def test_it_is_used_only_where_it_is_asked_for(tmp_path):
    check_error(DataMissingError, lambda: TASK.data(_config(), tmp_path), flickr8k.FEATURE_FILE, "README")
    _write(tmp_path)
    assert TASK.data(_config(), tmp_path).dataset.label == "Flickr8k captions as features, substitute"
    assert TASK.data(_config(source="auto", batch_size=16, image_size=288), tmp_path).dataset.provenance == "synthetic"


def test_a_batch_has_one_of_a_pictures_three_captions(tmp_path):
    _write(tmp_path)
    cfg = _config()
    part = data.in_vocabulary(flickr8k.read_features(tmp_path, 6), cfg.vocabulary)["train"]
    features = part.features.rows(np.arange(7))
    splits, which = TASK.data(cfg, tmp_path), set()
    for step in range(20):
        batch = splits.train(step)
        for k in range(3):
            [picture] = np.flatnonzero((features == batch["features"][k]).all(axis=1))
            words = batch["ids"][:int(batch["mask"][:, k].sum()) - 1, k].tolist()
            which.add([part.captions[3 * picture + c].tolist() for c in range(3)].index(words))
    assert which == {0, 1, 2}


def test_folds_hold_three_captions_a_picture(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "_FOLD_IMAGES", 2)
    _write(tmp_path)
    split = TASK.data(_config(), tmp_path).evaluation["test"]
    folds = list(data.folds(split))
    assert [(len(sentences), len(features)) for sentences, features in folds] == [(6, 2), (6, 2)]
    np.testing.assert_array_equal(np.concatenate([features for _, features in folds]), split["features"])
    assert np.array_equal(np.concatenate([sentences.flat for sentences, _ in folds]), split["flat"])
