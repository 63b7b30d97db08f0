"""What LAS draws: where it listened, from the command line and from a sound file, and how its weights are distributed."""

import numpy as np
import pytest
from task_checks import untrained
from test_las_audio import TONE, write_sphere, write_wav

from duoln import cli
from duoln.errors import DataError, DataFormatError, DivergedError, UsageError
from duoln.plugins.las import data, pictures
from duoln.plugins.las.corpus import LETTERS
from duoln.plugins.las.pictures import Options, sample, spell
from duoln.plugins.las.task import Las
from duoln.testing import check_error

TASK = Las()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two short runs, from the command line."""
    folder = tmp_path_factory.mktemp("runs")
    assert cli.main(["run", "las", "--preset", "smoke", "--epochs", "1", "--variant", "none,both", "--backend", "numpy",
                     "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def trained():
    return untrained(TASK, "none")


@pytest.mark.long
def test_sample_from_the_command_line(runs, tmp_path, capsys):
    argv = ["sample", str(runs / "both"), "--out", str(tmp_path / "a.png")]
    assert cli.main([*argv, "--count", "2", "--set", "dev"]) == 0
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG" and "wrote" in capsys.readouterr().err
    assert cli.main([*argv, "--audio", str(write_wav(tmp_path / "x.wav", TONE, 8000))]) == 0
    for more, words in ((["--count", "0"], ["1 to 16", "0"]), (["--set", "all"], ["train, dev, test", "'all'"]),
                        (["--audio", str(tmp_path / "no.wav")], ["no.wav"]),
                        (["--audio", str(write_wav(tmp_path / "y.wav", TONE, 16000))], ["y.wav", "8000", "16000"]),
                        (["--audio", str(write_sphere(tmp_path / "z.wav", TONE[:150], 8000))], ["z.wav", "one frame", "150"])):
        assert cli.main([*argv, *more]) in (2, 4)
        stderr = capsys.readouterr().err
        assert all(word in stderr for word in words) and "Traceback" not in stderr, stderr


def test_what_is_drawn(trained, tmp_path, monkeypatch):
    stderr = []
    monkeypatch.setattr(pictures, "draw_attention", lambda spelled, mels, out: stderr.extend(spelled))
    sample(trained, Options(count=3), tmp_path / "a.png")
    assert [s.name for s in stderr] == [f"made sounds\ntest {k}" for k in (1, 2, 3)] and all(s.symbols for s in stderr)
    for one in stderr:
        steps = -(-len(one.heard) // 2)
        assert one.weights.shape[1] == steps and len(one.weights) in (len(one.written), len(one.written) + 1)
        np.testing.assert_allclose(one.weights.sum(1), 1, rtol=1e-5)


def test_a_picture_of_phones_and_of_nothing_written(tmp_path):
    one = pictures.Spelled("a", np.zeros((9, 6)), ["sil", "ah"], ["ah"], np.full((2, 5), 0.2))
    pictures.draw_attention([one, one._replace(symbols=None, written=[], weights=np.full((1, 5), 0.2))], 1, tmp_path / "a.png")
    assert pictures._text(["sil", "ah"]) == "sil ah" and pictures._text(["a", " ", "b"]) == "a b"


def test_models_that_cannot_be_sampled(trained, tmp_path):
    check_error(UsageError, lambda: sample(trained, Options(), tmp_path / "a.gif"), "a.gif")
    trained.params["speller"]["query"]["weight"].data[:] = np.nan
    with np.errstate(all="ignore"):
        check_error(DivergedError, lambda: spell(trained, np.zeros((9, 27), np.float32), LETTERS), "not finite")
    (tmp_path / "a.wav").write_bytes(b"RIFF")
    check_error(DataFormatError, lambda: sample(trained, Options(audio=str(tmp_path / "a.wav")), tmp_path / "a.png"), "a.wav")
    check_error(DataError, lambda: sample(trained, Options(audio=str(tmp_path)), tmp_path / "a.png"), str(tmp_path))


@pytest.mark.long
def test_report_draws_the_weights(runs, tmp_path, capsys):
    assert cli.main(["report", str(runs), "--out", str(tmp_path)]) == 0
    written = capsys.readouterr().err.replace("\n", "")
    for name in ("weights.png", "attentions.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG" and name in written


def test_the_models_of_several_runs_listen_to_one_utterance(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(pictures, "draw_attention", lambda spelled, mels, out: drawn.extend([*spelled, mels, out]))
    models = {name: untrained(TASK, name) for name in ("both", "none", "encoder")}
    out = pictures.draw_side_by_side(models, TASK.variants, tmp_path / "a.png")
    *spelled, mels, path = drawn
    assert [one.name for one in spelled] == [f"{name}\nmade sounds" for name in ("none", "encoder", "both")] and (mels, path) == (8, out)
    middle = data.load(models["none"].config, None)[0].sets["test"][8]
    assert all(tuple(one.symbols) == middle.symbols and np.array_equal(one.heard, spelled[0].heard) for one in spelled)
    assert not np.array_equal(spelled[0].weights, spelled[2].weights)


@pytest.mark.long
def test_histograms_are_densities(trained, tmp_path, monkeypatch):
    from matplotlib.axes import Axes

    drawn = []
    before = Axes.stairs
    monkeypatch.setattr(Axes, "stairs", lambda self, values, edges, **k: (
        drawn.append((values, edges, k["label"])), before(self, values, edges, **k))[1])
    pictures.draw_weights({"none": trained, "again": trained}, ["none"], tmp_path / "w.png")
    assert len(drawn) == 12 and {label.split()[0] for _, _, label in drawn} == {"start", "none", "again"}
    for values, edges, _ in drawn:
        assert 0.97 < (values * np.diff(edges)).sum() <= 1 + 1e-9
    sizes = [len(np.concatenate(list(pictures._weights(trained.params[part], kind))))
             for part in ("listener", "speller") for kind in ("w_x", "w_h")]
    assert sizes == [2 * 32 * (27 + 32), 2 * 2 * 8 * 32, (29 + 16) * 48, 12 * 48]
