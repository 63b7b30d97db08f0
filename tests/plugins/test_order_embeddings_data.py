"""Corpora of images and captions: what is read, what is refused and with which words, features, vocabularies."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from task_checks import root_with

from duoln.errors import DataFormatError, DataMissingError, UsageError
from duoln.plugins.order_embeddings import coco, data, extractor, flickr8k
from duoln.plugins.order_embeddings.corpus import (
    SPLITS,
    UNKNOWN,
    Corpus,
    Features,
    Part,
    Sentences,
    Words,
    in_vocabulary,
)
from duoln.plugins.order_embeddings.data import make_pictures
from duoln.plugins.order_embeddings.task import OrderEmbeddings
from duoln.tasks import Dataset, make_config
from duoln.testing import check_error

TASK = OrderEmbeddings()
REAL = root_with(flickr8k.path_in(Path()), Path(flickr8k.FOLDER) / flickr8k.PHOTOGRAPH_FILE)
WORDS = ["the", "cat", "sat", "on", "a", "mat", "near", "two", "red", "dogs"]


# COCO ---------------------------------------------------------------------------------------------------

def make_coco(root, width=6, **counts):
    """A small corpus in Karpathy's form; its images stand in the json file in turns."""
    counts = counts or {"train": 4, "restval": 3, "val": 2, "test": 2}
    folder = root / coco.FOLDER
    (folder / coco.FEATURE_FOLDER).mkdir(parents=True)
    rng = np.random.default_rng(0)
    order = rng.permutation([name for name, count in counts.items() for _ in range(count)]).tolist()
    images = [{"imgid": k, "split": split, "filename": f"{k}.jpg", "sentences": [
        {"imgid": k, "tokens": [WORDS[i] for i in rng.integers(0, len(WORDS), rng.integers(1, 9))]} for _ in range(5 + k % 2)]}
        for k, split in enumerate(order)]
    rows = {"train": counts["train"] + counts.get("restval", 0), "val": counts["val"], "test": counts["test"]}
    for name, count in rows.items():
        np.save(folder / coco.FEATURE_FOLDER / f"{name}.npy", rng.random((count, width), np.float32))
    _write(folder, {"images": images, "dataset": "coco"})
    return folder


def _write(folder, whole):
    (folder / coco.CAPTION_FILE).write_text(json.dumps(whole), encoding="utf-8")


def test_coco_is_read(tmp_path):
    folder = make_coco(tmp_path)
    whole = json.loads((folder / coco.CAPTION_FILE).read_text())
    read = coco.read(tmp_path, 6)
    assert read.dataset == Dataset("COCO captions, 7 images", "substitute")
    for name, splits in (("train", ("train", "restval")), ("dev", ("val",)), ("test", ("test",))):
        images = [e for e in whole["images"] if e["split"] in splits]
        part = read.parts[name]
        tokens = [s["tokens"] for e in images for s in e["sentences"][:5]]
        assert [[read.words[w] for w in part.captions[i]] for i in range(len(part.captions))] == tokens
        stored = np.load(folder / coco.FEATURE_FOLDER / coco.FEATURE_FILES[name])
        rows = part.features.rows(np.arange(len(images)))
        np.testing.assert_allclose(rows, stored / np.linalg.norm(stored, axis=1, keepdims=True), rtol=1e-5)


def test_dev_is_the_first_thousand(tmp_path):
    make_coco(tmp_path, width=2, train=2, val=1003, test=1)
    dev = coco.read(tmp_path, 2).parts["dev"]
    assert len(dev.features) == 1000 and len(dev.captions) == 5000


@pytest.mark.parametrize(("change", "words"), [
    (lambda e: e[3].pop("sentences"), ["images[3].sentences", "at least 5 captions of image 3", "nothing"]),
    (lambda e: e[3]["sentences"].__delitem__(slice(1, None)), ["images[3].sentences", "image 3"]),
    (lambda e: e[2]["sentences"][1].update(imgid=9), ["images[2].sentences[1].imgid", "expected 2", "found 9"]),
    (lambda e: e[2]["sentences"][4].update(tokens=[]), ["images[2].sentences[4].tokens", "at least one", "[]"]),
    (lambda e: e[2]["sentences"][0].update(tokens=["a", 3]), ["images[2].sentences[0].tokens", "words"]),
    (lambda e: e[2]["sentences"][0].update(tokens=[""]), ["images[2].sentences[0].tokens"]),
    (lambda e: e[2]["sentences"].insert(0, 7), ["images[2].sentences[0]", "object"]),
    (lambda e: e[5].update(imgid=1), ["images[5].imgid", "1, as images[1] has"]),
    (lambda e: e[5].update(imgid="5"), ["images[5].imgid", "whole number"]),
    (lambda e: e[5].update(split="dev"), ["images[5].split", "restval", "'dev'"]),
    (lambda e: e.insert(0, []), ["images[0]", "object"]), (lambda e: e.clear(), ["images", "list"])])
def test_damaged_entries_of_coco(tmp_path, change, words):
    folder = make_coco(tmp_path)
    whole = json.loads((folder / coco.CAPTION_FILE).read_text())
    change(whole["images"])
    _write(folder, whole)
    check_error(DataFormatError, lambda: coco.read(tmp_path, 6), coco.CAPTION_FILE, *words)


def test_features_that_do_not_fit_the_captions(tmp_path):
    folder = make_coco(tmp_path)
    check_error(DataFormatError, lambda: coco.read(tmp_path, 7), "train.npy", "width 7", "image_size", "found 6")
    path = folder / coco.FEATURE_FOLDER / "val.npy"
    np.save(path, np.ones((3, 6), np.float32))
    check_error(DataFormatError, lambda: coco.read(tmp_path, 6), "val.npy", "2 rows", "an image without captions")
    np.save(path, np.ones((1, 6), np.float32))
    check_error(DataFormatError, lambda: coco.read(tmp_path, 6), "val.npy", "2 rows", "captions without an image")
    np.save(path, np.array([[1, 2, 3, 4, 5, 6], [0] * 6], np.float32))
    check_error(DataFormatError, lambda: TASK.data(make_config(TASK, "ln", "smoke", {"source": "coco", "image_size": 6, "batch_size": 2}), tmp_path),
                "val.npy", "row 1", "not all 0")
    path.unlink()
    check_error(DataMissingError, lambda: coco.read(tmp_path, 6), "val.npy")


# Flickr8k -----------------------------------------------------------------------------------------------

def make_flickr8k(root, splits=None):
    """A small corpus in Flickr8k's form: two photographs in no split, captions without photographs."""
    folder = root / flickr8k.FOLDER
    folder.mkdir(parents=True)
    pictures = make_pictures(14, 0, "test")
    names = [f"{k:03d}_ab.jpg" for k in range(14)]
    lines = [f"{name}#{c}\t{' '.join(pictures.captions[5 * k + c]).capitalize()} ." for k, name in enumerate(names) for c in range(5)]
    lines += [f"{k}_without.jpg#{c}\tNobody has seen this one ." for k in range(2) for c in range(5)]
    _gz(folder / flickr8k.CAPTION_FILE, lines)
    for split, part in (splits or {"train": [*names[:6], "0_without.jpg"], "dev": names[6:9], "test": names[9:12]}).items():
        _gz(folder / flickr8k.LIST_FILES[split], part)
    np.savez_compressed(folder / flickr8k.PHOTOGRAPH_FILE, images=pictures.images, name=np.array(names))
    return folder


def _gz(path, lines):
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def _lines(path):
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def test_flickr8k_is_read(tmp_path):
    make_flickr8k(tmp_path)
    parts = flickr8k.read(tmp_path)
    assert {name: (len(p.images), len(p.captions)) for name, p in parts.items()} == {"train": (6, 30), "dev": (3, 15), "test": (3, 15)}
    pictures = make_pictures(14, 0, "test")
    assert parts["dev"].captions == pictures.captions[30:45]
    np.testing.assert_array_equal(parts["test"].images, pictures.images[9:12])


@pytest.mark.parametrize(("number", "line", "words"), [
    (3, "000_ab.jpg#2 a caption", ["NAME#NUMBER"]), (3, "000_ab.jpg#7\ta caption", ["NAME#NUMBER", "0 to 4"]),
    (3, "#2\ta caption without an image", ["NAME#NUMBER"]), (3, "000_ab.jpg#2\t", ["word in it", "''"]),
    (3, "000_ab.jpg#2\t . !", ["word in it", "' . !'"]), (3, "000_ab.jpg#1\tagain", ["000_ab.jpg#1 again"]),
    (70, "", ["NAME#NUMBER"])])
def test_damaged_lines_of_captions(tmp_path, number, line, words):
    path = make_flickr8k(tmp_path) / flickr8k.CAPTION_FILE
    lines = _lines(path)
    lines[number - 1] = line
    _gz(path, lines)
    check_error(DataFormatError, lambda: flickr8k.read(tmp_path), flickr8k.CAPTION_FILE, f"line {number}", *words)


def test_images_and_captions_that_lack_each_other(tmp_path):
    folder = make_flickr8k(tmp_path)
    captions = _lines(folder / flickr8k.CAPTION_FILE)
    dev = folder / flickr8k.LIST_FILES["dev"]
    names = _lines(dev)
    _gz(dev, [*names, "999_unknown.jpg"])
    check_error(DataFormatError, lambda: flickr8k.read(tmp_path), dev.name, "line 4", "999_unknown.jpg")
    _gz(dev, [*names, names[0]])
    check_error(DataFormatError, lambda: flickr8k.read(tmp_path), dev.name, "line 4", "as in line 1")
    _gz(dev, [names[0], "", names[1]])
    check_error(DataFormatError, lambda: flickr8k.read(tmp_path), dev.name, "line 2")
    _gz(dev, ["0_without.jpg"])
    check_error(DataFormatError, lambda: flickr8k.read(tmp_path), dev.name, "photographs", "none")
    _gz(dev, names)
    _gz(folder / flickr8k.CAPTION_FILE, [line for line in captions if not line.startswith("006_ab.jpg#3")])
    check_error(DataFormatError, lambda: flickr8k.read(tmp_path), "006_ab.jpg", "#0 #1 #2 #4")
    _gz(folder / flickr8k.CAPTION_FILE, [line for line in captions if not line.startswith("013")])
    check_error(DataFormatError, lambda: flickr8k.read(tmp_path), flickr8k.PHOTOGRAPH_FILE, "name[13]", "013_ab.jpg")
    (folder / flickr8k.PHOTOGRAPH_FILE).unlink()
    check_error(DataMissingError, lambda: flickr8k.read(tmp_path), flickr8k.PHOTOGRAPH_FILE)


def test_damaged_photographs(tmp_path):
    path = make_flickr8k(tmp_path) / flickr8k.PHOTOGRAPH_FILE
    captions = flickr8k.read_captions(path.with_name(flickr8k.CAPTION_FILE))
    grey, small, images = np.zeros((14, 32, 32, 1), np.uint8), np.zeros((14, 4, 4, 3), np.uint8), np.zeros((14, 32, 32, 3), np.uint8)
    names = np.array([f"{k:03d}_ab.jpg" for k in range(14)])
    for arrays, words in (({"images": grey, "name": names}, ["images", "32, 32, 1"]), ({"images": small, "name": names}, ["8 x 8"]),
                          ({"images": images, "name": names[:3]}, ["14 images", "found 3"]),
                          ({"images": images, "name": np.array(["000_ab.jpg"] * 14)}, ["name[1]", "again"]),
                          ({"images": images.astype(float), "name": names}, ["uint8"]), ({"name": names}, ["'images'"])):
        np.savez(path, **arrays)
        check_error(DataFormatError, lambda: flickr8k.read_photographs(path, captions), path.name, *words)


def test_a_run_on_flickr8k_says_what_it_is(tmp_path):
    make_flickr8k(tmp_path)
    splits = TASK.data(make_config(TASK, "ln", "smoke", {"source": "auto", "batch_size": 4}), tmp_path)
    assert splits.dataset == Dataset("Flickr8k, 12 photos, patch-kmeans", "substitute")
    assert splits.steps_per_epoch == 1 and splits.train(0)["features"].shape == (4, 288)


# Vocabularies and sentences -----------------------------------------------------------------------------

def _corpus(**texts):
    words = Words()
    parts = {name: Part(Sentences.of([words.numbers(t.split()) for t in texts[name]]), Features(np.ones((1, 1), np.float32), name))
             for name in SPLITS}
    return Corpus(Dataset("x", "synthetic"), parts, words.list(), "x.txt")


def test_the_vocabulary_is_by_frequency_and_without_the_words_of_test():
    corpus = _corpus(train=["b a a c", "c a"], dev=["d c"], test=["a e", "e e e"])
    parts = in_vocabulary(corpus, 6)  # a and c thrice, then b and d once: rows 2, 3, 4, 5
    assert [parts["train"].captions[i].tolist() for i in range(2)] == [[4, 2, 2, 3], [3, 2]]
    assert parts["dev"].captions[0].tolist() == [5, 3]
    assert [parts["test"].captions[i].tolist() for i in range(2)] == [[2, UNKNOWN], [UNKNOWN] * 3]
    check_error(UsageError, lambda: in_vocabulary(corpus, 5), "x.txt", "at most 5 rows", "4 words", "vocabulary=6")


def test_sentences():
    sentences = Sentences.of([[3, 4], [], [5]])
    assert len(sentences) == 3 and [sentences[i].tolist() for i in range(3)] == [[3, 4], [], [5]]
    assert sentences.first(1).flat.tolist() == [3, 4] and len(Sentences.of([])) == 0
    numbers = np.concatenate([n for n, _ in data.in_batches(Sentences.of([[2] * (k % 7) for k in range(600)]))])
    assert sorted(numbers.tolist()) == list(range(600))


# Features -----------------------------------------------------------------------------------------------

@pytest.mark.long
def test_features_are_the_same_again_and_tell_pictures_apart():
    train, dev = (make_pictures(count, 0, split).images for count, split in ((40, "train"), (10, "dev")))
    first, second = extractor.extract(train, [dev], 320, 0), extractor.extract(train, [dev], 320, 0)
    assert [a.shape for a in first] == [(40, 320), (10, 320)] and all(a.dtype == np.float32 for a in first)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_allclose(first[0].mean(axis=0), 0, atol=1e-4)
    other_seed = extractor.extract(train, [dev], 320, 1)
    assert not np.array_equal(other_seed[0], first[0])
    # What another picture adds to the same dictionary changes nothing of the others.
    np.testing.assert_allclose(extractor.extract(train, [dev[:3]], 320, 0)[1], first[1][:3], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("width", [256, 321])
def test_a_width_that_the_dictionary_cannot_have(width):
    train = make_pictures(2, 0, "train").images
    check_error(UsageError, lambda: extractor.extract(train, [], width, 0), "image_size", "a multiple of 4, above 256", str(width))


def test_a_patch_is_described_as_in_the_paper():
    """One image, position by position."""
    train = make_pictures(12, 0, "train").images
    dictionary = extractor.fit(train, 5, 0)
    patches = extractor._describe(dictionary, train[:1])[0].reshape(4, 5 + extractor.COLOURS)
    near = np.zeros((27, 27, 5))
    for r in range(27):
        for c in range(27):
            patch = train[0, r:r + 6, c:c + 6].astype(float).transpose(2, 0, 1).ravel()
            patch = (patch - patch.mean()) / np.sqrt(patch.var() + 10)
            z = (patch - dictionary.mean) @ dictionary.whitening
            distances = np.linalg.norm(z - dictionary.entries, axis=1)
            near[r, c] = np.maximum(distances.mean() - distances, 0)
    quarters = [near[a, b].mean(axis=(0, 1)) for a in (slice(0, 13), slice(13, 27)) for b in (slice(0, 13), slice(13, 27))]
    np.testing.assert_allclose(patches[:, :5], quarters, rtol=1e-3, atol=1e-4)
    shares = np.square(patches[:, 5:])
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    corner = train[0, :16, :16].reshape(-1, 3) // 64
    np.testing.assert_allclose(shares[0], np.bincount(corner @ [16, 4, 1], minlength=64) / 256, atol=1e-6)


def test_where_patches_never_vary_only_the_regulariser_divides():
    """Each patch has lost its mean, so that no two differ along the direction of all ones."""
    ones = np.ones(extractor.PATCH ** 2 * 3)
    whitening = extractor.fit(make_pictures(12, 0, "train").images, 5, 0).whitening
    np.testing.assert_allclose(whitening @ ones, ones / np.sqrt(extractor._WHITENING), rtol=1e-3)


def test_a_flat_picture_and_few_patches_are_no_problem():
    flat = np.full((3, 16, 16, 3), 128, np.uint8)
    training, *others = extractor.extract(flat, [flat[:1]], 288, 0)
    assert len(training) == 3 and [len(a) for a in others] == [1]
    assert all(np.isfinite(a).all() for a in (training, *others))


SPLIT_OF = ["train"] * 7 + ["dev"] * 3 + ["test"] * 4


def _arrays(width=6):
    rng = np.random.default_rng(0)
    captions = [[f"Two {WORDS[k % 6]} {WORDS[c]} picture{k} ." for c in range(3)] for k in range(len(SPLIT_OF))]
    return {"features": rng.standard_normal((len(SPLIT_OF), width)).astype(np.float16), "split": np.array(SPLIT_OF),
            "name": np.array([f"{k}.jpg" for k in range(len(SPLIT_OF))]), "captions": np.array(captions)}


def _write_features(root, **changes):
    path = flickr8k.features_in(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = _arrays()
    arrays.update({name: change(arrays[name]) for name, change in changes.items()})
    np.savez_compressed(path, **arrays)
    return arrays


def test_captions_and_features_of_each_split(tmp_path):
    arrays = _write_features(tmp_path)
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
    _write_features(tmp_path, **changes)
    check_error(DataFormatError, lambda: flickr8k.read_features(tmp_path, 6), flickr8k.FEATURE_FILE, *words)


def _config(**settings):
    return make_config(TASK, "ln", "smoke", {"source": "flickr8k-captions", "image_size": 6, "batch_size": 3, **settings})


def test_features_without_a_direction(tmp_path):
    _write_features(tmp_path, features=lambda a: np.where(np.arange(len(a))[:, None] == 8, np.nan, a).astype(np.float16))
    check_error(DataFormatError, lambda: TASK.data(_config(), tmp_path), flickr8k.FEATURE_FILE, "features of dev", "row 1", "nan")


@pytest.mark.long
def test_it_is_used_only_where_it_is_asked_for(tmp_path):
    check_error(DataMissingError, lambda: TASK.data(_config(), tmp_path), flickr8k.FEATURE_FILE, "README")
    _write_features(tmp_path)
    assert TASK.data(_config(), tmp_path).dataset.label == "Flickr8k captions as features, substitute"
    assert TASK.data(_config(source="auto", batch_size=16, image_size=288), tmp_path).dataset.provenance == "synthetic"


def test_a_batch_has_one_of_a_pictures_three_captions(tmp_path):
    _write_features(tmp_path)
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
    _write_features(tmp_path)
    split = TASK.data(_config(), tmp_path).evaluation["test"]
    folds = list(data.folds(split))
    assert [(len(sentences), len(features)) for sentences, features in folds] == [(6, 2), (6, 2)]
    np.testing.assert_array_equal(np.concatenate([features for _, features in folds]), split["features"])
    assert np.array_equal(np.concatenate([sentences.flat for sentences, _ in folds]), split["flat"])
