"""An operator of another package: its import brings its rules, and `selftest`, `doctor` and `bench` know it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from duoln import extend
from duoln.bench import records
from duoln.errors import DtypeError, PluginError, UsageError
from duoln.kernels import native, registry
from duoln.testing import check_error

compiles = pytest.mark.skipif(native.compiler() is None, reason="there is no C++ compiler")

OPERATOR = '''
    """l2_rows: each row divided by its Euclidean norm."""

    from pathlib import Path

    from duoln import extend

    _TEXT = str(Path(__file__).with_name("l2_rows"))
    _ROWS = "x: real[rows, width]"

    @extend.op(f"{_ROWS} -> like x")
    def l2_rows(x: extend.Tensor) -> extend.Tensor:
        """x / sqrt(1e-6 + sum of x^2 over a row)."""

    def _composed(be, x):
        scale = 1 / be.sqrt(be.sum(x * x, axis=1, keepdims=True) + 1e-6)
        return x * scale, (x, scale)

    def _composed_vjp(be, saved, gout, needs):
        x, scale = saved
        return (scale * (gout - x * scale * scale * be.sum(gout * x, axis=1, keepdims=True)),)

    l2_rows.add(extend.Rule("composed", _composed, _composed_vjp))

    _forward = extend.Launch(_TEXT, "l2_rows_forward", f"{_ROWS} -> y: like x, scale: real[rows]")
    _backward = extend.Launch(_TEXT, "l2_rows_backward", f"{_ROWS}, scale: real[rows], dy: like x -> dx: like x")

    def forward(be, x):
        y, scale = _forward[be.name](x)
        return y, (x, scale)

    def vjp(be, saved, gout, needs):
        return (_backward[be.name](*saved, gout),)

    extend.fused(l2_rows, forward, vjp, _forward)
    extend.register(
        l2_rows, lambda: [extend.case(l2_rows, shape) for shape in ((1, 7), (3, 33), (64, 1000))],
        extend.Timed(lambda shape: extend.case(l2_rows, shape), [(4096, 1024)], [(256, 256)], arrays=(2, 3), flops=(3, 5),
                     peer=lambda torch, x: torch.nn.functional.normalize(x, dim=1, eps=1e-3)))
'''
CPP = '''
    #include "common.h"

    ENTRY(l2_rows_forward) {
        guarded([=] { in_parts(rows, threads, [=](index_t begin, index_t end) {
            for (index_t r = begin; r < end; ++r) {
                double sum = 1e-6;
                for (index_t k = 0; k < width; ++k) sum += double(x[r * width + k]) * x[r * width + k];
                scale[r] = T(1 / std::sqrt(sum));
                for (index_t k = 0; k < width; ++k) y[r * width + k] = x[r * width + k] * scale[r];
            }
        }); });
    }

    ENTRY(l2_rows_backward) {
        guarded([=] { in_parts(rows, threads, [=](index_t begin, index_t end) {
            for (index_t r = begin; r < end; ++r) {
                double dot = 0;
                for (index_t k = 0; k < width; ++k) dot += double(dy[r * width + k]) * x[r * width + k];
                const T factor = T(dot * scale[r] * scale[r]);
                for (index_t k = 0; k < width; ++k)
                    dx[r * width + k] = scale[r] * (dy[r * width + k] - x[r * width + k] * factor);
            }
        }); });
    }
'''


def package(folder, operator=OPERATOR, cpp=CPP, task=""):
    """The package `rows`, as if it were installed: its operator, its text, and the entry point that names it."""
    inside = folder / "rows_package"
    inside.mkdir()
    (inside / "__init__.py").write_text(dedent(task) or "from rows_package.operator import l2_rows\n")
    (inside / "operator.py").write_text(dedent(operator))
    (inside / "l2_rows.cpp").write_text(dedent(cpp))
    info = folder / "rows_dist-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rows-dist\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text("[duoln]\nrows = rows_package\n")
    return folder


def duoln(folder, *words, code=None, **variables):
    paths = os.pathsep.join([str(folder), str(Path(__file__).parents[1])])
    program = ["-c", dedent(code)] if code else ["-m", "duoln", *words]
    return subprocess.run([sys.executable, *program], capture_output=True, text=True, cwd=folder, check=False,
                          env={**os.environ, "PYTHONPATH": paths, **variables})


@compiles
def test_an_import_brings_its_rules(tmp_path):
    done = duoln(package(tmp_path), code="""
        import duoln
        duoln.backend("numpy")
        from rows_package import l2_rows
        x = duoln.tensor([[3.0, 4.0]], "numpy")
        print(l2_rows(x).numpy(), l2_rows.explain(x))
    """)
    assert done.stdout.strip() == "[[0.6 0.8]] [('compiled', 'runs')]", done.stderr


@compiles
def test_selftest_tries_it_and_finds_a_broken_gradient(tmp_path):
    right = duoln(package(tmp_path), "selftest", "--backend", "numpy", "--op", "l2_rows", "--json")
    assert right.returncode == 0, right.stderr
    assert [r["rule"] for r in json.loads(right.stdout)["rules"]] == ["compiled"]
    text = tmp_path / "rows_package" / "l2_rows.cpp"
    text.write_text(text.read_text().replace("- x[r * width + k] * factor", "+ x[r * width + k] * factor"))
    broken = duoln(tmp_path, "selftest", "--backend", "numpy", "--op", "l2_rows")
    assert broken.returncode == 1 and "failed: l2_rows 64 x 1000: gradient 0" in broken.stdout, broken.stdout


@compiles
@pytest.mark.long
def test_a_rule_without_a_case_is_told(tmp_path):
    done = duoln(package(tmp_path, OPERATOR.replace("for shape in ((1, 7), (3, 33), (64, 1000))", "for shape in ()")),
                 "selftest", "--backend", "numpy", "--one-of-each", "--json")
    assert json.loads(done.stdout)["untried"] == ["l2_rows, rule 'compiled'"]


@compiles
def test_bench_times_it_and_the_record_names_the_package(tmp_path):
    done = duoln(package(tmp_path), "bench", "ops", "--op", "l2_rows", "--backend", "numpy", "--rounds", "2", "--warm",
                 "--shape", "64,64", "--json", "record.json")
    assert done.returncode == 0, done.stderr
    record = records.load(tmp_path / "record.json")
    [forward, both] = [case for case in record["cases"] if case["op"] == "l2_rows"]
    assert both["pass"] == "forward+backward" and forward["rule"] == "compiled" and forward["facts"]["package"] == "rows-dist 1.5"
    assert forward["bytes"] == 2 * 4 * 64 * 64 and records.timings(record)


def test_bench_names_an_operator_that_is_not_timed(tmp_path):
    timed = OPERATOR[OPERATOR.index("extend.Timed"):]
    done = duoln(package(tmp_path, OPERATOR.replace(timed, "None)\n")), "bench", "ops", "--op", "l2_rows")
    assert done.returncode == 2 and "registered without a timing: register(op, cases, timed)" in done.stderr
    done = duoln(tmp_path, "bench", "ops", "--op", "l2_row")
    assert done.returncode == 2 and "expected one of layer_norm" in done.stderr.replace("\n", " ")


def test_doctor_lists_it(tmp_path):
    done = duoln(package(tmp_path), "doctor", "--ops", "--json")
    assert json.loads(done.stdout)["ops"]["l2_rows"]["numpy"] == "compiled > composed"


@pytest.fixture
def cube(monkeypatch):
    """A new operator with a composed rule, and no registered one."""
    monkeypatch.setattr(registry, "_registered", {})

    @extend.op("x: real[*shape] -> like x")
    def cube(x: extend.Tensor) -> extend.Tensor:
        """x^3."""

    cube.add(extend.derived(lambda x: x * x * x))
    return cube


def test_what_cannot_be_registered(cube):
    check_error(DtypeError, lambda: extend.register("cube", list), "[register] op: expected an operator")
    check_error(DtypeError, lambda: extend.register(cube, [extend.case(cube, (1,))]), "[register] cases: expected a function")
    check_error(DtypeError, lambda: extend.register(cube, list, (1, 2)), "[register] timed: expected extend.Timed or None")
    fresh = extend.op("x: real[*shape] -> like x")(cube.function)
    check_error(UsageError, lambda: extend.register(fresh, list), "expected an operator with a composed rule")
    fresh.add(extend.derived(lambda x: x * x * x))
    fresh.__module__ = "another"
    extend.register(cube, list)
    check_error(UsageError, lambda: extend.register(fresh, list), "found a second 'cube' of another")
    cube.name = "relu"
    check_error(UsageError, lambda: extend.register(cube, list), "found a second 'relu'", "the first is of duoln.ops")


@pytest.mark.parametrize(("cases", "words"), [
    (lambda op: [3], "expected extend.Case objects of cube, found 3"),
    (lambda op: [extend.case(op, (2, 2))._replace(op="cubes")], "found cubes 2 x 2"),
    (lambda op: 1 / 0, "ZeroDivisionError: division by zero")])
def test_cases_that_are_none_name_the_operator(cube, cases, words):
    extend.register(cube, lambda: cases(cube))
    check_error(PluginError, registry.registered_cases, f"the cases of cube, of {__name__}: ", words)


def test_a_case_has_the_arrays_of_its_shapes(cube):
    made = extend.case(cube, (3, 7))
    assert str(made) == "cube 3 x 7" and [a.shape for a in made.inputs] == [(3, 7)]
    assert made.length == 7 and made.attrs == {} and all(a.dtype == np.float32 for a in made.inputs)


TASK = '''
    from duoln import ops
    from duoln.examples.own_task import Spirals
    from duoln.tasks import hookimpl
    from rows_package.operator import l2_rows

    class OnRows(Spirals):
        name = "on_rows"

        def predict(self, model, params, batch):
            return super().predict(model, params, {**batch, "x": l2_rows(batch["x"])})

        def loss(self, model, params, batch):
            return super().loss(model, params, {**batch, "x": l2_rows(batch["x"])})

    @hookimpl
    def duoln_tasks():
        return [OnRows()]
'''


@compiles
def test_a_run_records_the_rules_and_a_resume_with_others_is_refused(tmp_path):
    package(tmp_path, task=TASK)
    train = "from duoln.tasks import train; train('on_rows', '{variant}', preset='smoke', out='run', epochs={n}, resume={resume}, backend='numpy')"
    variant = json.loads(duoln(tmp_path, "show", "on_rows", "--json").stdout)["variants"]
    command = [next(iter(variant)), "--preset", "smoke", "--backend", "numpy"]
    ran = duoln(tmp_path, "run", "on_rows", "--variant", *command, "--epochs", "1", "--out", "top")
    assert ran.returncode == 0, ran.stderr
    [one] = [json.loads(line)["identity"] for line in (tmp_path / "top" / command[0] / "log.jsonl").read_text().splitlines()
             if "identity" in line][:1]
    assert one["operators"].startswith("l2_rows by compiled, of rows-dist 1.5 (")
    python = duoln(tmp_path, code=train.format(variant=command[0], n=2, resume=True).replace("'run'", f"'top/{command[0]}'"))
    assert python.returncode == 0, python.stderr
    text = tmp_path / "rows_package" / "l2_rows.cpp"
    text.write_text(text.read_text().replace("1e-6", "1.5e-6"))
    refused = duoln(tmp_path, code=train.format(variant=command[0], n=3, resume=True).replace("'run'", f"'top/{command[0]}'"))
    assert refused.returncode == 1 and "expected operators l2_rows by compiled, of rows-dist 1.5 (" in refused.stderr
    composed = duoln(tmp_path, "run", "on_rows", "--variant", *command, "--epochs", "3", "--out", "top", "--resume", "auto", DUOLN_NATIVE="0")
    assert composed.returncode != 0 and "l2_rows by composed" in " ".join(composed.stderr.split())
