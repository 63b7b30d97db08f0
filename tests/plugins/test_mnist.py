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
from duoln.plugins.mnist import data
from duoln.plugins.mnist.model import network
from duoln.plugins.mnist.task import Mnist
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


class TestData:
    def _folder(self, tmp_path, train=300, test=20):
        """A small MNIST in DUOLN_DATA's layout, with the resources' hashes made to fit."""
        folder = tmp_path / "mnist"
        folder.mkdir()
        for role, count in (("train", train), ("t10k", test)):
            images, labels = make_digits(count, 0, role)
            write_idx(folder / f"{role}-images-idx3-ubyte.gz", images)
            write_idx(folder / f"{role}-labels-idx1-ubyte.gz", labels)
        return tmp_path

    @pytest.fixture
    def small(self, tmp_path, monkeypatch):
        root = self._folder(tmp_path)
        monkeypatch.setattr(data, "_VALID", 50)
        return root

    def test_the_files_are_those_that_are_published(self):
        assert {r.path: r.size for pair in FILES.values() for r in pair} == {
            "mnist/train-images-idx3-ubyte.gz": 9_912_422, "mnist/train-labels-idx1-ubyte.gz": 28_881,
            "mnist/t10k-images-idx3-ubyte.gz": 1_648_877, "mnist/t10k-labels-idx1-ubyte.gz": 4_542}

    def test_files_are_split_and_scaled(self, small):
        splits = data.splits("mnist", 10, 0, None, small)
        assert splits.dataset == ("MNIST", "original")
        assert {k: v["x"].shape for k, v in splits.evaluation.items()} == {"train": (250, 784), "test": (20, 784)}
        x = splits.evaluation["train"]["x"]
        assert x.dtype == np.float32 and x.min() == 0 and 0.9 < x.max() <= 1
        assert splits.evaluation["train"]["label"].dtype == np.int32

    def test_a_damaged_file_is_an_error_and_not_a_fallback(self, small, monkeypatch):
        image_file = small / "mnist" / "train-images-idx3-ubyte.gz"
        whole = image_file.read_bytes()
        image_file.write_bytes(whole[:-20])
        check_error(DataFormatError, lambda: data.splits("auto", 10, 0, None, small), "train-images")
        monkeypatch.setenv("DUOLN_DATA", str(small))
        check_error(DataError, lambda: data.splits("auto", 10, 0, None, None), "sha256", "train-images")

    def test_unpacked_files_are_read(self, small):
        packed = data.splits("mnist", 10, 0, None, small)
        for path in (small / "mnist").iterdir():
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
        splits = data.splits("auto", 10, 0, None, small)
        assert splits.dataset == ("MNIST", "original") and splits.remarks == ("",)
        assert np.array_equal(splits.evaluation["train"]["x"], packed.evaluation["train"]["x"])

    def test_three_of_its_files_are_an_error_and_not_a_fallback(self, small):
        (small / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
        with pytest.raises(DataError) as caught:
            data.splits("auto", 10, 0, None, small)
        assert not isinstance(caught.value, DataMissingError)
        assert all(word in str(caught.value) for word in ("t10k-labels", "train-images", "DUOLN_OFFLINE", "whole or not at all"))

    @pytest.mark.skipif(REAL is None, reason="DUOLN_DATA has no MNIST")
    def test_the_sums_of_the_unpacked_files(self):
        for resource in (resource for pair in FILES.values() for resource in pair):
            content = gzip.decompress((REAL / resource.path).read_bytes())
            assert hashlib.sha256(content).hexdigest() == resource.unpacked_sha256

    def test_images_and_labels_must_fit(self, small):
        shutil.copy(small / "mnist" / "t10k-labels-idx1-ubyte.gz", small / "mnist" / "train-labels-idx1-ubyte.gz")
        check_error(DataFormatError, lambda: data.splits("mnist", 10, 0, None, small), "300 labels", "20")
        write_idx(small / "mnist" / "train-images-idx3-ubyte.gz", np.zeros((300, 27, 28), np.uint8))
        check_error(DataFormatError, lambda: data.splits("mnist", 10, 0, None, small), "28 x 28", "27")

    def test_labels_are_range_checked(self, small):
        labels = np.zeros(300, np.uint8)
        labels[7] = 10
        (small / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(
            bytes([0, 0, 8, 1, 0, 0, 1, 44]) + labels.tobytes()))
        check_error(DataError, lambda: data.splits("mnist", 10, 0, None, small), "0 .. 9", "found 10", "position 7")

    def test_rows(self, monkeypatch):
        monkeypatch.setattr(digits, "MADE_TRAIN", 2000)
        assert data.splits("made", 10, 0, 100, None).steps_per_epoch == 10
        check_error(UsageError, lambda: data.splits("made", 10, 0, 99_999, None), "rows", "99999")


class TestDigits:
    def test_the_same_for_the_same_seed(self):
        (a, la), (b, lb) = make_digits(50, 3, "train"), make_digits(50, 3, "train")
        assert np.array_equal(a, b) and np.array_equal(la, lb)
        assert not np.array_equal(a, make_digits(50, 4, "train")[0])
        assert not np.array_equal(a, make_digits(50, 3, "test")[0])

    def test_they_look_like_digits(self):
        images, labels = make_digits(500, 0, "train")
        assert images.shape == (500, 28, 28) and images.dtype == np.uint8 and set(labels) == set(range(10))
        assert 0.05 < images.mean() / 255 < 0.25  # MNIST: 0.13
        assert images.reshape(500, -1).max(1).min() > 150  # none is empty
        assert images[:, [0, 27]].mean() < 1 and images[:, :, [0, 27]].mean() < 1  # almost no digit is cut off
