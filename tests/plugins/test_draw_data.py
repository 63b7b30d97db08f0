"""Binarised MNIST on disk: the packed file, the text files, refused files, and made digits."""


import numpy as np
import pytest

from duoln.errors import DataFormatError
from duoln.plugins.draw import corpus
from duoln.plugins.draw.task import DrawTask
from duoln.tasks import make_config
from duoln.testing import check_error

TASK = DrawTask()
COUNTS = {"train": 12, "valid": 3, "test": 4}


@pytest.fixture
def images():
    rng = np.random.default_rng(5)
    return {split: (rng.random((n, 784)) < 0.3).astype(np.uint8) for split, n in COUNTS.items()}


@pytest.fixture
def packed(tmp_path, images):
    """A small packed file in DUOLN_DATA's layout."""
    path = tmp_path / corpus.PACKED
    path.parent.mkdir()
    np.savez_compressed(path, **{split: np.packbits(a, axis=1) for split, a in images.items()})
    return path


@pytest.fixture
def texts(tmp_path, images):
    """The text files, in a folder of their own."""
    folder = tmp_path / "source"
    folder.mkdir()
    for split, a in images.items():
        (folder / corpus.TEXTS[split]).write_text("".join(" ".join(map(str, row)) + "\n" for row in a))
    return folder


def test_the_packed_file_is_read(packed, images, tmp_path):
    dataset, splits = corpus.find_images(tmp_path)()
    assert dataset.provenance == "substitute"  # not the bits of the literature
    assert all(np.array_equal(splits[split], images[split]) for split in COUNTS)


def test_the_text_files_are_read_where_the_packed_one_is_not(texts, images, tmp_path):
    (tmp_path / corpus.FOLDER).mkdir()
    for path in texts.iterdir():
        path.rename(tmp_path / corpus.FOLDER / path.name)
    assert all(np.array_equal(corpus.find_images(tmp_path)()[1][split], images[split]) for split in COUNTS)


def test_the_known_bits_are_the_original(packed, images, tmp_path, monkeypatch):
    import hashlib

    bits = b"".join(np.packbits(images[split], axis=1).tobytes() for split in corpus.SPLITS)
    monkeypatch.setattr(corpus, "KNOWN_SHA256", hashlib.sha256(bits).hexdigest())
    assert corpus.find_images(tmp_path)()[0] == ("binarised MNIST", "original")


# What is refused ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("shape", [(2, 784), (0, 98), (2, 97)])
def test_the_packed_rows_are_of_98_bytes(shape, tmp_path):
    path = tmp_path / "packed.npz"
    np.savez(path, **{split: np.zeros(shape if split == "valid" else (2, 98), np.uint8) for split in corpus.SPLITS})
    check_error(DataFormatError, lambda: corpus.read_packed(path), "packed.npz: valid", "(images, 98)", str(shape))


def test_a_file_that_is_cut_off_is_an_error_and_not_a_fallback(packed, tmp_path):
    """`tests/data` damages it in other ways."""
    whole, cfg = packed.read_bytes(), make_config(TASK, "ln", "small")
    for keep in (len(whole) // 2, len(whole) - 10):
        packed.write_bytes(whole[:keep])
        check_error(DataFormatError, lambda: TASK.data(cfg, tmp_path), "packed.npz")


@pytest.mark.parametrize(("text", "words"), [
    ("", ("784 values in line 1", "empty")), ("0 1 0\n", ("784 values of 0 or 1", "3")),
    ("0 " * 784 + "\n" + "0 " * 783 + "\n", ("row 2", "783")), ("0 " * 783 + "2\n", ("784 up to 2",)),
    ("0 " * 783 + "x\n", ("'x'",)), ("01" * 392 + "\n", ("784 values of 0 or 1",)),
])
def test_every_claim_of_a_text_file_is_checked(text, words, tmp_path):
    path = tmp_path / "binarized_mnist_train.amat"
    path.write_text(text)
    check_error(DataFormatError, lambda: corpus.read_text(path), "train.amat", *words)


def test_text_files_may_end_as_they_like(tmp_path):
    path = tmp_path / "x.amat"
    for end in ("", "\n", "\n\n", " \r\n"):
        path.write_text("0 " * 783 + "1\n" + "1 " * 783 + "0" + end, newline="")
        pixels = corpus.read_text(path)
        assert pixels.shape == (2, 784) and pixels.sum() == 784 and pixels[0, 783] == 1 and pixels[1, 783] == 0
