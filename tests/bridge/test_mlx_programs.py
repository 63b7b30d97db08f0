"""Whole programs of MLX, drawn from seeds, with a layer of duoln in the place of MLX's own; see `mlx_programs`."""

import pytest

pytest.importorskip("mlx.core")

from bridge import mlx_programs as programs

EVERY_DAY, PROGRAMS = 8, 60


def _check(seed):
    program = programs.Program.drawn(seed)
    verdict, words = programs.judged(program)
    assert verdict != "wrong", f"{program}: {words}"
    return verdict


def test_programs_compute_what_mlx_computes():
    verdicts = [_check(seed) for seed in range(EVERY_DAY)]
    assert verdicts.count("equal") > 0.7 * EVERY_DAY


@pytest.mark.long
@pytest.mark.parametrize("first", range(EVERY_DAY, PROGRAMS, 4))
def test_more_programs(first):
    for seed in range(first, first + 4):
        _check(seed)


def test_a_wrong_gradient_is_found(monkeypatch):
    program = programs.Program(3, "GRU", "layer", "SGD", ("linear before", "linear after"))
    assert programs.judged(program) == ("equal", "")
    split = programs.bridge.apply

    def slanted(fn, arrays):
        x, *rest = arrays
        return split(fn, [x + 0.01 * (x - programs.mx.stop_gradient(x)), *rest])

    monkeypatch.setattr(programs.bridge, "apply", slanted)
    verdict, words = programs.judged(program)
    assert verdict == "wrong" and "gradient of before.0.weight" in words
