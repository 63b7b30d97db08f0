"""The example inside PyTorch: its sides compute what they say, and its record makes the picture."""

import pytest

from duoln.errors import UsageError
from duoln.testing import check_error

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.peers

from duoln.examples import inside_pytorch, records


def test_the_loop_computes_what_the_layer_does():
    models = []
    for side in ("loop", "duoln"):
        torch.manual_seed(0)
        models.append(inside_pytorch.LanguageModel(side, 11, 5))
        logits, states = models[-1](torch.arange(22).reshape(11, 2) % 11, models[-1].initial_states(2))
        (logits.square().sum() + sum(state.square().sum() for state in states)).backward()
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_a_rate_is_chosen_and_the_record_comes_back(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(inside_pytorch, "RATES", (1e-3, 1e-1))
    text, file = tmp_path / "text.txt", tmp_path / "r.json"
    text.write_text("the cat sat on the mat. " * 60)
    words = [str(text), "--updates", "4", "--every", "2", "--sizes", "3", "2", "4", "20", "--json", str(file)]
    assert inside_pytorch.main(words) == 0
    assert file.with_suffix(".png").is_file() and len(capsys.readouterr().out.splitlines()) == 5
    record = records.read(file, inside_pytorch.Record, inside_pytorch.Run)
    assert len(record.runs) == 3 * (2 + 2)
    for side in inside_pytorch.SIDES:
        runs = record.results(side)
        tried = [run for run in record.runs if run.side == side and run.seed == 0]
        assert [run.seed for run in runs] == [0, 1, 2] and len(runs[0].losses) == 3
        assert runs[0].losses[-1] == min(run.losses[-1] for run in tried)
    text.write_text("short")
    check_error(UsageError, lambda: inside_pytorch.main(words), "160 characters", "found")
