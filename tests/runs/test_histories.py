"""Random histories of runs leave what a plain model of them says: begun, stopped, crashed, resumed, changed, damaged."""

import pytest
from runs.histories import World

EVENTS = 8


def _history(seed, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr("duoln.pictures.drawing.can_draw", lambda: False)
    world = World(seed)
    for _ in range(EVENTS):
        try:
            world.step()
        except AssertionError as error:
            raise AssertionError(f"history {seed}: {error}; it was " + "; ".join(world.told)) from error


@pytest.mark.parametrize("seed", range(1))
def test_a_history(seed, tmp_path, monkeypatch):
    _history(seed, tmp_path, monkeypatch)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::duoln.errors.CheckpointWarning")  # `duoln.tasks.train` goes on before a damaged one, and says so
@pytest.mark.parametrize("seed", range(1, 300))
def test_many_histories(seed, tmp_path, monkeypatch):
    _history(seed, tmp_path, monkeypatch)
