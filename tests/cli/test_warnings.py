"""duoln's own warnings are remarks of a command; those of other libraries look as Python shows them."""

import warnings

import pytest

from duoln import doctor, runtime
from duoln.cli.guard import guarded
from duoln.errors import CompileWarning, GradientWarning


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("category", [CompileWarning, GradientWarning])
def test_a_warning_of_duoln_is_one_line(category, capsys):
    assert guarded(lambda: (warnings.warn("a reason", category, stacklevel=1), 0)[1]) == 0
    assert capsys.readouterr().err == "warning: a reason\n"


@pytest.mark.filterwarnings("default")
def test_a_warning_of_another_library_is_left_to_python(monkeypatch):
    seen = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *place, **named: seen.append(str(message)))
    before = warnings.showwarning
    assert guarded(lambda: (warnings.warn("old", DeprecationWarning, stacklevel=1), 0)[1]) == 0
    assert seen == ["old"] and warnings.showwarning is before


def test_doctor_names_what_no_graph_repeats(gpu, monkeypatch):
    probe = runtime.probe
    monkeypatch.setattr(runtime, "probe", lambda name: probe(name)._replace(backend=gpu, reason="") if name == "cupy" else probe(name))
    facts = doctor.examine(with_ops=True, asked=[])
    assert [r.partition(":")[0] for r in facts["remarks"] if "graph" in r] == [
        "take on cupy, rule 'composed'", "take_along_axis on cupy, rule 'composed'"]
    [cupy] = [b for b in facts["backends"] if b["name"] == "cupy"]
    assert cupy["info"]["compiled_steps"] == "one CUDA graph"
