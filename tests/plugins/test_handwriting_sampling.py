"""Writing: draws from the mixture, the end of a line, files, and what is refused."""

from xml.etree import ElementTree

import numpy as np
import pytest
from task_checks import short_run, untrained

from duoln import cli, runtime, tree
from duoln.errors import DivergedError, UsageError
from duoln.plugins.handwriting.corpus import ALPHABET
from duoln.plugins.handwriting.sampling import Options, draw_attention, draw_point, sample, strokes, write
from duoln.plugins.handwriting.task import Handwriting
from duoln.randomness import Stream
from duoln.testing import check_error

TASK = Handwriting()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a few updates."""
    folder = tmp_path_factory.mktemp("run") / "ln"
    short_run(TASK, "ln", folder, lines=16)
    return folder


@pytest.fixture
def trained():
    return untrained(TASK, "ln")


@pytest.mark.long
def test_points_are_drawn_from_the_mixture():
    """Means, deviations, correlation and the pen's bit of 20,000 draws from two components far apart."""
    end, p, m, s, r = -0.5, [1.0, 0.0], [[0.0, 50.0], [1.0, 60.0]], [[0.5, 0.0], [-0.5, 0.0]], [1.0, 0.0]
    rng = Stream(0, "draws")
    points = np.array([draw_point(np.array([end, *p, *m[0], *m[1], *s[0], *s[1], *r]), 0.0, rng) for _ in range(20_000)])
    near = points[points[:, 0] < 25]
    assert len(near) / 20_000 == pytest.approx(1 / (1 + np.exp(-1)), abs=0.01)
    np.testing.assert_allclose(near[:, :2].mean(0), [0, 1], atol=0.05)
    np.testing.assert_allclose(near[:, :2].std(0), np.exp([0.5, -0.5]), rtol=0.03)
    assert np.corrcoef(near[:, 0], near[:, 1])[0, 1] == pytest.approx(np.tanh(1.0), abs=0.02)
    assert points[:, 2].mean() == pytest.approx(1 / (1 + np.exp(-0.5)), abs=0.01)
    neat = np.array([draw_point(np.array([end, *p, *m[0], *m[1], *s[0], *s[1], *r]), 2.0, rng) for _ in range(2_000)])
    assert neat[neat[:, 0] < 25][:, 0].std() == pytest.approx(np.exp(0.5 - 2), rel=0.1)
    assert (neat[:, 0] < 25).mean() == pytest.approx(1 / (1 + np.exp(-3)), abs=0.02)


def test_extreme_parameters_give_finite_points():
    for r in (-20.0, 20.0, 500.0):
        output = np.array([800.0, 900.0, 0.0, 0.0, 0.0, -0.0, 0.0, 8.0, -8.0, -8.0, 8.0, r, -r])
        assert np.isfinite(draw_point(output, 0.0, Stream(0, "x"))).all()


def test_a_line_ends_when_the_window_has_passed_the_text(trained):
    """At the start the window of this preset takes about a character a point."""
    written = write(trained.model, trained.params, ALPHABET.encode("eel"), 0.0, 0, 100)
    assert written.passed and 1 <= len(written.pen_up) < 10
    assert written.phi.shape == (len(written.pen_up), 3) and written.offsets.shape == (len(written.pen_up), 2)
    cut = write(trained.model, trained.params, ALPHABET.encode("eel" * 4), 0.0, 0, 5)
    assert not cut.passed and len(cut.pen_up) == 5


def test_both_backends_write_the_same(trained):
    elsewhere = runtime.to_tensors(tree.map(lambda t: t.numpy(), trained.params), "mlx")
    a = write(trained.model, trained.params, ALPHABET.encode("tea"), 0.5, 1, 40)
    b = write(trained.model, elsewhere, ALPHABET.encode("tea"), 0.5, 1, 40)
    np.testing.assert_allclose(a.offsets, b.offsets, rtol=1e-3, atol=1e-2)


@pytest.mark.long
def test_from_the_command_line(run, tmp_path, capsys):
    out, picture = tmp_path / "deep" / "out.svg", tmp_path / "attention.png"
    argv = ["sample", str(run), "--backend", "numpy", "--out"]
    assert cli.main([*argv, str(out), "--text", "ten", "--bias", "0.5", "--attention", str(picture)]) == 0
    assert ElementTree.parse(out).getroot().tag.endswith("svg") and picture.read_bytes()[:4] == b"\x89PNG"
    for extra, words in ((["--text", "né"], ["'é'"]), (["--text", "ten " * 9], ["at most 12", "found 36"]),
                         (["--bias", "-1"], ["bias", "-1"]), (["--bias", "inf"], ["bias", "inf"]),
                         (["--steps", "-3"], ["steps", "-3"]), (["--attention", "a.txt"], [".png", ".txt"])):
        capsys.readouterr()
        assert cli.main([*argv, str(out), "--text", "ten", *extra]) == 2, extra
        stderr = capsys.readouterr().err
        assert all(word in stderr for word in words), stderr
    assert cli.main([*argv, str(tmp_path / "out.gif")]) == 2


def test_models_that_cannot_write(trained, tmp_path):
    broken = tree.map(lambda t: t, trained.params)
    broken["output"] = {**broken["output"], "bias": broken["output"]["bias"] * float("nan")}
    check_error(DivergedError, lambda: sample(trained._replace(params=broken), Options(text="ten"), tmp_path / "a.svg"),
                "not finite", "point 1")
    assert not (tmp_path / "a.svg").exists()


def test_strokes(tmp_path):
    offsets, pen_up = np.array([[0, 0], [10, 0], [0, 10], [5, 5], [1, 1]]), np.array([0, 1, 1, 0, 0])
    assert [p.tolist() for p in strokes(offsets, pen_up)] == [[[0, 0], [10, 0]], [[10, 10]], [[15, 15], [16, 16]]]
    check_error(UsageError, lambda: draw_attention(tmp_path / "a.png", np.zeros((3, 2)), "abc"), "3", "2")
