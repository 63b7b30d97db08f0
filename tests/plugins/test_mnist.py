"""The MNIST task: the kit for tasks, the network of section 6.6, the metrics, the data, and one start everywhere."""

import gzip
import hashlib
import shutil

import numpy as np
import pytest
from conftest import ON_NUMPY
from task_checks import check_peer, check_task_on, root_with

from duoln import nn, tree
from duoln.data.digits import make_digits
from duoln.data.idx import write_idx
from duoln.data.mnist import FILES
from duoln.errors import DataError, DataFormatError, DataMissingError, UsageError
from duoln.plugins.mnist import task
from duoln.plugins.mnist.task import Mnist, network
from duoln.tasks import digits, make_config
from duoln.testing import check_error

TASK = Mnist()
REAL = root_with("mnist")


@ON_NUMPY
def test_it_is_a_task(be, monkeypatch):
    monkeypatch.setattr(digits, "MADE_TEST", 500)
    check_task_on(be, TASK, settings={"rows": 600})


def test_the_network_of_the_paper():
    sizes = {v: sum(a.size for a in tree.leaves(TASK.model(make_config(TASK, v)).init(_stream()))) for v in TASK.variants}
    weights = 784 * 1000 + 1000 * 1000 + 1000 * 10
    assert sizes == {"none": weights + 2010, "ln": weights + 4000 + 10, "bn": weights + 4020,
                     "bn-hidden": weights + 4000 + 10, "ln-logits": weights + 4020}


def _stream():
    from duoln.randomness import Stream

    return Stream(0, "init")


def test_layer_norm_spares_the_logits_and_batch_norm_does_not():
    names = {norm: [path for path, m in network(norm, 8, False).modules()
                    if isinstance(m, nn.LayerNorm | nn.BatchNorm)] for norm in ("none", "layer", "batch", "batch-hidden")}
    assert names == {"none": [], "layer": ["norm1", "norm2"], "batch": ["norm1", "norm2", "norm3"],
                     "batch-hidden": ["norm1", "norm2"]}


@pytest.mark.parametrize(("batch", "unbiased"), [(128, False), (4, True)])
def test_batch_norm_is_unbiased_at_batch_4(batch, unbiased):
    model = TASK.model(make_config(TASK, "bn", None, {"batch_size": batch}))
    assert {m.unbiased for _, m in model.modules() if isinstance(m, nn.BatchNorm)} == {unbiased}


@pytest.mark.peers
@pytest.mark.parametrize("variant", TASK.variants)
def test_the_peer_trains_as_we_do(variant):
    check_peer(TASK, variant, make_config(TASK, variant, "smoke"), 4, rtol=1e-4)


def _splits(source, root, rows=None):
    return TASK.data(make_config(TASK, "ln", None, {"source": source, "batch_size": 10, "rows": rows}), root)


def _folder(tmp_path, train=300, test=20):
    """A small MNIST in DUOLN_DATA's layout, with the resources' hashes made to fit."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    for role, count in (("train", train), ("t10k", test)):
        images, labels = make_digits(count, 0, role)
        write_idx(folder / f"{role}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{role}-labels-idx1-ubyte.gz", labels)
    return tmp_path


@pytest.fixture
def small(tmp_path, monkeypatch):
    root = _folder(tmp_path)
    monkeypatch.setattr(task, "_VALID", 50)
    return root


def test_files_are_split_and_scaled(small):
    splits = _splits("mnist", small)
    assert splits.dataset == ("MNIST", "original")
    assert {k: v["x"].shape for k, v in splits.evaluation.items()} == {"train": (250, 784), "test": (20, 784)}
    x = splits.evaluation["train"]["x"]
    assert x.dtype == np.float32 and x.min() == 0 and 0.9 < x.max() <= 1
    assert splits.evaluation["train"]["label"].dtype == np.int32


def test_a_damaged_file_is_an_error_and_not_a_fallback(small, monkeypatch):
    image_file = small / "mnist" / "train-images-idx3-ubyte.gz"
    whole = image_file.read_bytes()
    image_file.write_bytes(whole[:-20])
    check_error(DataFormatError, lambda: _splits("auto", small), "train-images")
    monkeypatch.setenv("DUOLN_DATA", str(small))
    check_error(DataError, lambda: _splits("auto", None), "sha256", "train-images")


def test_unpacked_files_are_read(small):
    packed = _splits("mnist", small)
    for path in (small / "mnist").iterdir():
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    splits = _splits("auto", small)
    assert splits.dataset == ("MNIST", "original") and splits.remarks == ("",)
    assert np.array_equal(splits.evaluation["train"]["x"], packed.evaluation["train"]["x"])


def test_three_of_its_files_are_an_error_and_not_a_fallback(small):
    (small / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError) as caught:
        _splits("auto", small)
    assert not isinstance(caught.value, DataMissingError)
    assert all(word in str(caught.value) for word in ("t10k-labels", "train-images", "DUOLN_OFFLINE", "whole or not at all"))


@pytest.mark.skipif(REAL is None, reason="DUOLN_DATA has no MNIST")
def test_the_sums_of_the_unpacked_files():
    for resource in (resource for pair in FILES.values() for resource in pair):
        content = gzip.decompress((REAL / resource.path).read_bytes())
        assert hashlib.sha256(content).hexdigest() == resource.unpacked_sha256


def test_images_and_labels_must_fit(small):
    shutil.copy(small / "mnist" / "t10k-labels-idx1-ubyte.gz", small / "mnist" / "train-labels-idx1-ubyte.gz")
    check_error(DataFormatError, lambda: _splits("mnist", small), "300 labels", "20")
    write_idx(small / "mnist" / "train-images-idx3-ubyte.gz", np.zeros((300, 27, 28), np.uint8))
    check_error(DataFormatError, lambda: _splits("mnist", small), "28 x 28", "27")


def test_labels_are_range_checked(small):
    labels = np.zeros(300, np.uint8)
    labels[7] = 10
    (small / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(
        bytes([0, 0, 8, 1, 0, 0, 1, 44]) + labels.tobytes()))
    check_error(DataError, lambda: _splits("mnist", small), "0 .. 9", "found 10", "position 7")


def test_rows(monkeypatch):
    monkeypatch.setattr(digits, "MADE_TRAIN", 2000)
    assert _splits("made", None, 100).steps_per_epoch == 10
    check_error(UsageError, lambda: _splits("made", None, 99_999), "rows", "99999")
