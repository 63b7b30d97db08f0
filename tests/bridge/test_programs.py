"""Whole programs of PyTorch, drawn from seeds, with a layer of duoln in the place of PyTorch's own; see `programs`."""

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("ignore")]  # PyTorch warns of much that the programs do on purpose

from bridge import programs

EVERY_DAY, PROGRAMS = 30, 400


@pytest.fixture(autouse=True)
def _one_thread():
    """Arrays are so small that several threads of PyTorch's only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _check(index):
    program, verdict, words, _ = programs.counted(index)
    assert verdict != "wrong", f"{program}: {words}"
    return verdict


def test_programs_compute_what_pytorch_computes():
    verdicts = [_check(index) for index in range(EVERY_DAY)]
    assert verdicts.count("equal") > 0.7 * EVERY_DAY


@pytest.mark.long
@pytest.mark.parametrize("index", range(EVERY_DAY, PROGRAMS, 10))
def test_more_programs(index):
    for k in range(index, index + 10):
        _check(k)


@pytest.mark.parametrize("name", ["weight_hh_l0", "bias_ih_l0", "weight_ih_l0_reverse"])
def test_a_wrong_gradient_is_found(name, monkeypatch):
    """A program whose layer has one gradient that is a thousandth too large is wrong; one without any part of the layer does not count."""
    program = programs.Program(7, "LSTM", "none", "SGD", ("linear before", "bidirectional", "linear after"))
    assert programs.judged(program) == ("equal", "")
    build = programs._built

    def slanted(program, side):
        model = build(program, side)
        if side == "ours":
            model.layer.get_parameter(name).register_hook(lambda g: g * 1.001)
        return model

    monkeypatch.setattr(programs, "_built", slanted)
    verdict, words = programs.judged(program)
    assert verdict == "wrong" and f"gradient of layer.{name}" in words
    monkeypatch.setattr(programs, "_built", lambda program, side: build(program, "twin"))
    assert programs.judged(program)[0] == "again"
