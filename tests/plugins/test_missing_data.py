"""A corpus is read whole or not at all: made data stand in only where nothing of it is there, and a run says why."""

import os
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest

from duoln import doctor, tree
from duoln.cli import main, one_task
from duoln.data import files
from duoln.errors import DataError, DataMissingError
from duoln.tasks import make_config
from duoln.tasks.registry import find_task
from duoln.testing import check_error

TASKS = ("attentive_reader", "convnet", "draw", "handwriting", "las", "mnist", "order_embeddings", "skip_thoughts", "transformer")
PARTS = [
    ("mnist", "small", "mnist/train-images-idx3-ubyte.gz"), ("mnist", "small", "mnist/t10k-labels-idx1-ubyte"),
    ("mnist", "small", "MNIST/raw/train-images-idx3-ubyte"), ("convnet", "small-mnist", "mnist/t10k-labels-idx1-ubyte.gz"),
    ("convnet", "small", "cifar10/cifar-10-batches-py/test_batch"),
    ("convnet", "small", "cifar10/cifar-10-binary.tar"), ("draw", "small", "binarized_mnist/binarized_mnist_valid.amat"),
    ("handwriting", "smoke", "handwriting/iam_ondb_full_test.npz"), ("handwriting", "smoke", "handwriting/lineStrokes/a01/a.xml"),
    ("las", "small", "speech/fsdd_test.npz"), ("order_embeddings", "smoke", "captions/Flickr8k.token.txt"),
    ("order_embeddings", "smoke", "captions/Flickr_8k.devImages.txt.gz"), ("order_embeddings", "smoke", "captions/coco/images/10crop/val.npy"),
    ("skip_thoughts", "smoke", "books/novels100.txt.gz"), ("skip_thoughts", "smoke", "books/novels100_heldout.txt"),
    ("transformer", "smoke", "books/novels100_heldout.txt.gz"), ("attentive_reader", "smoke", "cloze/novel_cloze_questions.tar"),
]


@pytest.fixture(autouse=True)
def nothing_there(monkeypatch, tmp_path):
    monkeypatch.setenv("DUOLN_DATA", "")
    monkeypatch.setenv("DUOLN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("DUOLN_OFFLINE", "1")


def _auto(name, preset, **settings):
    task = find_task(name)
    return task, make_config(task, next(iter(task.variants)), preset, {"source": "auto", **settings})


@pytest.mark.parametrize("link", [False, True], ids=["damaged", "a link to nothing"])
@pytest.mark.parametrize(("name", "preset", "place"), PARTS)
def test_a_part_of_a_corpus_is_an_error_that_names_it(tmp_path, monkeypatch, name, preset, place, link):
    task, cfg = _auto(name, preset)
    (tmp_path / place).parent.mkdir(parents=True)
    if link:
        (tmp_path / place).symlink_to("nowhere")
    else:
        (tmp_path / place).write_bytes(b"damaged")
    monkeypatch.setenv("DUOLN_DATA", str(tmp_path))
    with pytest.raises(DataError) as caught:
        task.data(cfg)
    assert not isinstance(caught.value, DataMissingError) and str(tmp_path) in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize("name", TASKS)
def test_made_data_say_why_and_where_files_belong(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setenv("DUOLN_DATA", str(tmp_path / "mistyped"))
    task, cfg = _auto(name, "smoke")
    splits = task.data(cfg)
    one_task.say_data(splits)
    output = " ".join(capsys.readouterr().err.split())
    assert splits.dataset.provenance == "synthetic" and "synthetic data stand in for it: " in output and "DUOLN_DATA" in output
    assert "(no such folder)" in output or "DUOLN_OFFLINE=1" in output
    requested = task.data(make_config(task, next(iter(task.variants)), "smoke"))
    assert requested.remarks[0] == "synthetic data were requested (source=made)"


SOURCES = [(name, source) for name in TASKS for source in get_args(get_type_hints(find_task(name).config)["source"]) if source not in ("auto", "made")]


@pytest.mark.parametrize(("name", "source"), SOURCES)
def test_a_corpus_that_is_asked_for_is_never_replaced(name, source):
    """The error names a file of the corpus."""
    task = find_task(name)
    places = task.corpora.get(source) or next(iter(task.corpora.values()))
    with pytest.raises(DataMissingError, match="DUOLN_") as error:
        task.data(make_config(task, next(iter(task.variants)), "smoke", {"source": source}))
    assert any(Path(file).stem in str(error.value) for files in places for file in files)


@pytest.mark.parametrize(("name", "preset", "settings"), [
    ("order_embeddings", "paper", {"image_size": 260}), ("handwriting", "small", {"batch_size": 200}), ("mnist", "small", {"rows": 50_000}),
    ("draw", "small", {"batch_size": 5_000}), ("las", "small", {"batch_size": 100}), ("attentive_reader", "small", {"batch_size": 900}),
    ("convnet", "small", {"batch_size": 3_000})])
def test_settings_of_a_corpus_that_is_missing_are_about_the_corpus(name, preset, settings):
    task, cfg = _auto(name, preset, **settings)
    check_error(DataMissingError, lambda: task.data(cfg), "synthetic data stand in for it", "not found", "DUOLN_DATA")


@pytest.mark.parametrize("name", TASKS)
def test_the_preset_small_needs_no_data(name):
    """As `duoln list` says."""
    task, cfg = _auto(name, "small")
    assert task.data(cfg).dataset.provenance == "synthetic"


@pytest.mark.long
@pytest.mark.parametrize(("name", "settings"), [*((name, {}) for name in TASKS), ("las", {"words": 3, "longest": 20})])
def test_what_is_held_out_is_the_same_for_every_seed(name, settings):
    first, second = ((task := find_task(name)).data(make_config(task, next(iter(task.variants)), "smoke", {**settings, "seed": seed}))
                     for seed in (0, 1))
    assert len(first.evaluation) > 0
    for split in first.evaluation:
        for (path, a), (_, b) in zip(tree.items(first.evaluation[split]), tree.items(second.evaluation[split]), strict=True):
            assert np.array_equal(a, b), (split, path)


def test_the_words_of_an_original_are_read_unpacked(tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "novels.txt").write_text("".join(f"### {k}\n" + f"It was {k}. So it was. It is so.\n" * 9 for k in "abcd"))
    for name in ("skip_thoughts", "transformer"):
        task, cfg = _auto(name, "smoke", **({"judge": "none"} if name == "skip_thoughts" else {}))
        assert task.data(cfg, tmp_path).dataset.name.startswith("novels, ")


@pytest.mark.long
def test_a_folder_of_the_user_that_is_not_there_is_told(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setenv("DUOLN_DATA", str(tmp_path / "file"))
    assert files.absent_folders() == [f"DUOLN_DATA: {tmp_path / 'file'} is no folder"]
    monkeypatch.setenv("DUOLN_DATA", os.pathsep.join([str(tmp_path), str(tmp_path / "typo")]))
    line = f"DUOLN_DATA: {tmp_path / 'typo'} does not exist"
    one_task.say_absent()
    assert capsys.readouterr().err.splitlines() == [line]
    assert line in doctor.examine(asked=["mnist"])["advice"]
    monkeypatch.chdir(tmp_path)
    assert main(["run", "mnist", "--preset", "smoke", "--variant", "ln", "--epochs", "0", "--out", "r"]) == 0
    assert capsys.readouterr().err.splitlines().count(line) == 1


@pytest.mark.parametrize("name", [name for name in TASKS if "paper" in find_task(name).presets])
def test_the_papers_preset_trains_on_nothing_but_its_corpus(name):
    task = find_task(name)
    with pytest.raises(DataMissingError, match="not found"):
        task.data(make_config(task, next(iter(task.variants)), "paper"))


@pytest.mark.parametrize(("name", "address"), [("order_embeddings", "~vendrov/datasets/coco.zip"), ("attentive_reader", "cs.nyu.edu/~kcho/DMQA"),
                                               ("draw", "~larocheh/public/datasets"), ("handwriting", "fki.tic.heia-fr.ch"), ("las", "LDC")])
def test_where_the_corpus_is_given_out_is_said(name, address):
    task = find_task(name)
    with pytest.raises(DataMissingError, match=address):
        task.data(make_config(task, next(iter(task.variants)), "paper"))
    assert name == "las" or address in (Path(__file__).parents[2] / f"plugins/{name}/README.md").read_text(encoding="utf-8")
