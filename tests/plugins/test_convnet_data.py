"""The images of the ConvNet task: CIFAR-10 in its three forms, MNIST, made ones; whitening; and refused files."""

import gzip
import io
import tarfile

import numpy as np
import pytest
from task_checks import root_with

from duoln.data import mnist
from duoln.data.idx import write_idx
from duoln.errors import DataError, DataFormatError
from duoln.plugins.convnet import corpus, data
from duoln.plugins.convnet.task import ConvNetTask
from duoln.tasks import make_config
from duoln.testing import check_error

TASK = ConvNetTask()
RECORDS = 7
NAMES = (*corpus.FILES["train"], *corpus.FILES["test"])
REAL = root_with(corpus.SUBSET)


@pytest.fixture(autouse=True)
def _small_files(monkeypatch):
    monkeypatch.setattr(corpus, "RECORDS", RECORDS)


def _records(seed):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, RECORDS).astype(np.uint8)
    return labels, rng.integers(0, 256, (RECORDS, 3, 32, 32)).astype(np.uint8)


CONTENTS = {name: b"".join(bytes([label]) + image.tobytes() for label, image in zip(*_records(k), strict=True))
            for k, name in enumerate(NAMES)}


def _archive(members, compress=gzip.compress):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
            archive.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    return compress(out.getvalue())


def _inside(contents=CONTENTS):
    return {"cifar-10-batches-bin": _folder_entry(), **{f"cifar-10-batches-bin/{k}": v for k, v in contents.items()},
            "cifar-10-batches-bin/readme.html": b"see the web"}


def _folder_entry():
    info = tarfile.TarInfo("cifar-10-batches-bin")
    info.type = tarfile.DIRTYPE
    return info


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / corpus.ARCHIVE.path
    path.parent.mkdir()
    path.write_bytes(_archive(_inside()))
    return path


def _arrays(**changed):
    labels, images = _records(0)
    return {"train_images": images, "train_labels": labels, "test_images": images[:2], "test_labels": labels[:2], **changed}


@pytest.fixture
def subset(tmp_path):
    path = tmp_path / corpus.SUBSET
    path.parent.mkdir()
    np.savez(path, **_arrays())
    return path


# What is read -------------------------------------------------------------------------------------------

def test_the_binary_version(archive, tmp_path):
    dataset, splits = corpus.find_images(tmp_path)()
    assert dataset.label == "CIFAR-10, substitute"
    labels, images = (np.concatenate(a) for a in zip(*(_records(k) for k in range(5)), strict=True))
    assert np.array_equal(splits["train"].labels, labels) and splits["train"].labels.dtype == np.int32
    assert splits["train"].images.shape == (5 * RECORDS, 32, 32, 3) and splits["train"].images.flags.c_contiguous
    for channel in range(3):
        assert np.array_equal(splits["train"].images[..., channel], images[:, channel])
    assert np.array_equal(splits["test"].labels, _records(5)[0])
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == {"cifar-10-binary.tar.gz"}  # nothing unpacked


def test_a_part_of_it(subset, tmp_path):
    dataset, splits = corpus.find_images(tmp_path)()
    labels, images = _records(0)
    assert dataset.label == "CIFAR-10, 7 images, substitute"
    assert np.array_equal(splits["train"].images, images.transpose(0, 2, 3, 1)) and np.array_equal(splits["test"].labels, labels[:2])


def test_the_whole_comes_before_a_part(subset, tmp_path):
    (tmp_path / corpus.ARCHIVE.path).write_bytes(_archive(_inside()))
    assert len(corpus.find_images(tmp_path)()[1]["train"].labels) == 5 * RECORDS


def test_mnist(tmp_path, monkeypatch):
    (tmp_path / "mnist").mkdir()
    rng = np.random.default_rng(0)
    for name, count in (("train", 12), ("t10k", 5)):
        write_idx(tmp_path / "mnist" / f"{name}-images-idx3-ubyte.gz", rng.integers(0, 256, (count, 28, 28)).astype(np.uint8))
        write_idx(tmp_path / "mnist" / f"{name}-labels-idx1-ubyte.gz", (np.arange(count) % 10).astype(np.uint8))
    monkeypatch.setattr(data, "_VALID", 2)
    splits = TASK.data(make_config(TASK, "ln", "small-mnist", {"batch_size": 5}), tmp_path)
    assert splits.dataset.label == "MNIST, substitute"
    assert {k: v["x"].shape for k, v in splits.evaluation.items()} == {"train": (10, 28, 28, 1), "test": (5, 28, 28, 1)}
    assert splits.train(0)["first"].shape == (5, 14, 14, 16)
    write_idx(tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz", np.full(5, 10, np.uint8))
    check_error(DataError, lambda: mnist.read_mnist(tmp_path), "t10k-labels", "0 .. 9", "found 10")


def test_made_images_are_digits_in_two_colours():
    from duoln.plugins.convnet.data import make_coloured, make_grey

    coloured, grey = make_coloured(30, 0, "train"), make_grey(30, 0, "train")
    assert coloured.images.shape == (30, 32, 32, 3) and coloured.images.dtype == np.uint8
    assert np.array_equal(coloured.labels, grey.labels)
    corners = coloured.images[:, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert (corners == corners[:, :1]).all() and len(np.unique(corners[:, 0], axis=0)) == 30  # a ground each
    where = grey.images[:, :, :, 0] > 128
    apart = np.abs(coloured.images[:, 2:-2, 2:-2].astype(int) - corners[:, :1, None]).sum(-1)
    assert (apart[where] > 0).mean() > 0.95


# What is done to images ---------------------------------------------------------------------------------

def _correlated(count, rng):
    """Images of 2 x 2 x 3 whose values are correlated."""
    return (rng.random((count, 3)) @ rng.random((3, 12)) * 60 + rng.random((count, 12)) * 60).astype(np.uint8).reshape(-1, 2, 2, 3)


@pytest.mark.parametrize("count", [1, 5, 2500])
def test_zca_against_its_formula(count, rng):
    images, unseen = _correlated(count, rng), _correlated(30, rng)
    x, y = ((i.reshape(len(i), -1).astype(np.float64) - 127.5) / 128 for i in (images, unseen))
    covariance = (x - x.mean(0)).T @ (x - x.mean(0)) / count
    u, s, _ = np.linalg.svd(covariance)
    rank = min(count - 1, 12)  # in the other directions no training image has anything
    assert np.linalg.matrix_rank(covariance, tol=1e-12) == rank
    expected = (y - x.mean(0)) @ u[:, :rank] @ np.diag((s[:rank] + 1e-3) ** -0.5) @ u[:, :rank].T
    whitened = data.fit_whitening(images, "zca", 1e-3)(unseen)
    assert whitened.dtype == np.float32 and whitened.shape == unseen.shape
    np.testing.assert_allclose(whitened.reshape(30, -1), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(data.fit_whitening(images, "mean", 1e-3)(unseen).reshape(30, -1), y - x.mean(0), atol=1e-6)


@pytest.mark.parametrize("epsilon", [1e-5, 1e-12])
def test_what_training_images_lack_is_not_enlarged(epsilon, rng):
    """The last rows of pixels are black in training alone, as at the borders of digits: a division by epsilon's root."""
    images, unseen = np.split(_correlated(2000, rng), 2)
    images = images * np.array([1, 0], np.uint8)[:, None, None]
    prepare = data.fit_whitening(images, "zca", epsilon)
    train, test = prepare(images), prepare(unseen)
    assert test[:, 0].std() == pytest.approx(train[:, 0].std(), rel=0.1) and np.abs(test[:, 1]).max() < 1e-6
    assert data.whitening_remark(train, test) == ""


def test_only_the_training_images_are_looked_at(subset, tmp_path):
    cfg = make_config(TASK, "ln", "small", {"batch_size": 2})
    first = TASK.data(cfg, tmp_path).evaluation["train"]["x"]
    np.savez(subset, **_arrays(test_images=255 - _records(0)[1][:2]))
    assert np.array_equal(first, TASK.data(cfg, tmp_path).evaluation["train"]["x"])


# What is refused ----------------------------------------------------------------------------------------

@pytest.mark.parametrize(("change", "words"), [
    (lambda c: c[:-1], ("21511 bytes", "7 records of 3073", "found 21510")),
    (lambda c: c[:3073 * 3 + 100], ("21511 bytes", "found 9319", "at byte 9319")),
    (lambda c: c + b"\0", ("found 21512",)), (lambda c: b"", ("found 0",)),
    (lambda c: c[:3073 * 4] + b"\x0a" + c[3073 * 4 + 1:], ("at byte 12292", "a label of at most 9 in record 4", "found 10")),
    (lambda c: b"\xff" + c[1:], ("at byte 0", "record 0", "found 255"))])
def test_a_file_that_is_not_as_it_should_be(change, words, archive, tmp_path):
    archive.write_bytes(_archive(_inside({**CONTENTS, "data_batch_3.bin": change(CONTENTS["data_batch_3.bin"])})))
    for source in ("auto", "real"):  # an error, and not a fallback
        check_error(DataFormatError, lambda s=source: TASK.data(make_config(TASK, "ln", "small", {"source": s}), tmp_path),
                    "cifar-10-binary.tar.gz", "data_batch_3.bin", *words)


def test_a_damaged_archive(archive):
    """Besides what is wrong with any tar archive."""
    whole, inside = archive.read_bytes(), _inside()
    file = "cifar-10-batches-bin/test_batch.bin"
    a_folder = _folder_entry()
    a_folder.name = file
    for content, words in ((whole[:-30], "undamaged gzip stream"), (whole[:len(whole) // 2], "undamaged gzip stream"), (b"", "empty"),
                           (b"PK\3\4 no gzip", "undamaged tar archive"), (gzip.compress(b"no tar" * 200, mtime=0), "undamaged tar archive"),
                           (_archive({k: v for k, v in inside.items() if "batch_4" not in k}), "data_batch_4.bin"),
                           (_archive({**inside, "../x": b"x"}), "leads out"), (_archive({**inside, file: a_folder}), "test_batch.bin")):
        archive.write_bytes(content)
        check_error(DataFormatError, lambda: corpus.read_archive(archive), "cifar-10-binary.tar.gz", words)


@pytest.mark.parametrize(("changed", "words"), [
    ({"train_images": np.zeros((7, 32, 32, 3), np.uint8)}, ("train_images", "(images, 3, 32, 32)", "(7, 32, 32, 3)")),
    ({"train_images": np.zeros((7, 3, 28, 28), np.uint8)}, ("train_images", "(7, 3, 28, 28)")),
    ({"train_images": np.zeros((0, 3, 32, 32), np.uint8), "train_labels": np.zeros(0, np.uint8)}, ("train_images", "(0, 3, 32, 32)")),
    ({"train_images": np.zeros((7, 3072), np.uint8)}, ("train_images", "4 axes", "(7, 3072)")),
    ({"train_images": np.zeros((7, 3, 32, 32), np.float32)}, ("train_images", "uint8", "float32")),
    ({"test_labels": np.zeros(3, np.uint8)}, ("test_labels", "2 images of test", "3")),
    ({"test_labels": np.array([3, 10], np.uint8)}, ("test_labels", "at most 9", "found 10", "byte 1"))])
def test_an_npz_of_other_arrays(changed, words, subset, tmp_path):
    np.savez(subset, **_arrays(**changed))
    check_error(DataFormatError, lambda: corpus.find_images(tmp_path)(), "cifar10_subset.npz", *words)


# What a run says in its first lines ---------------------------------------------------------------------

def test_whitening_by_too_few_images_is_said():
    rng = np.random.default_rng(0)
    turned = np.linalg.qr(rng.standard_normal((48, 48)))[0]
    values = rng.standard_normal((1000, 48)) * np.logspace(1.9, 0, 48) @ turned + 128  # they differ little in most directions
    images = np.clip(values, 0, 255).astype(np.uint8).reshape(-1, 4, 4, 3)
    few, many = data.fit_whitening(images[:40], "zca", 1e-5), data.fit_whitening(images[:900], "zca", 1e-5)
    assert "times as large as training ones, because 40 images are too few" in data.whitening_remark(few(images[:40]), few(images[900:]))
    assert data.whitening_remark(many(images[:900]), many(images[900:])) == "" == data.whitening_remark(few(images[:40]) * 0, few(images))


@pytest.mark.long
def test_remarks_reach_the_splits(monkeypatch):
    monkeypatch.setattr(data, "whitening_remark", lambda train, test: f"prepared: {len(train)} and {len(test)}")
    monkeypatch.setitem(data.MADE, "train", 60)
    settings = {"decay": 0.5, "rows": None}
    made, prepared, schedule_of = TASK.data(make_config(TASK, "ln", "smoke", settings)).remarks
    assert "requested" in made and prepared == "prepared: 60 and 500" and not schedule_of
    monkeypatch.setattr(data, "updates", lambda cfg: 100_000)
    schedule_of = TASK.data(make_config(TASK, "ln", "smoke", settings)).remarks[2]
    assert "as in the 100,000 updates of the whole corpus; this run has 3," in schedule_of
