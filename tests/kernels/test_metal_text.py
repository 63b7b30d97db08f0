"""A check of every Metal kernel by Clang instead of Metal's compiler: Metal is C++14 with address spaces.

Every text that the cases launch is parsed with its signature as MLX writes it. `device`, `constant` and `threadgroup`
are different address spaces. Features that Metal does not have (lambdas, double) must not be in the text.
"""

import re
from pathlib import Path

import hostgpu
import pytest

mx = pytest.importorskip("mlx.core", reason="MLX is not for this platform")
cindex = pytest.importorskip("clang.cindex", reason="libclang is a test dependency on Linux")

import stand_in_metal

from duoln.errors import KernelError
from duoln.kernels import metal, source
from duoln.kernels.norm import metal as layer_norm_metal
from duoln.kernels.recurrent.metal import MetalSteps
from duoln.kernels.recurrent.plan import METAL_LADDER
from duoln.ops.recurrent.formulas import Settings
from duoln.ops.recurrent.variants import CELLS, norm_shapes

WORDS = (Path(hostgpu.HERE) / "metal_words.h").read_text()


def texts(batch, hidden):
    """Each kernel, with and without optional inputs, as MLX would give it to the compiler."""
    made = []

    def metal_kernel(name, input_names, output_names, source, header):
        def run(inputs, output_shapes, output_dtypes, **unused):
            given = {n: stand_in_metal.on_host(x) for n, x in zip(input_names, inputs, strict=True)}
            out = {n: stand_in_metal.on_host(mx.zeros(s, d)) for n, s, d in zip(output_names, output_shapes, output_dtypes, strict=True)}
            everything = stand_in_metal.arguments(given, out, source)
            made.append((name, stand_in_metal.signature(name, everything, source, header)))
            return [mx.array(a) for a in out.values()]
        return run

    with pytest.MonkeyPatch.context() as patch:
        stand_in_metal.install(patch, metal_kernel)
        row, state = mx.zeros((hidden,)), mx.zeros((batch, hidden))
        for needs in ((True, True, True), (True, False, False), (False, True, True)):
            for gain, bias, activation in ((row, row, "tanh"), (row, None, None), (None, None, "relu")):
                for dtype in (mx.float32, mx.float16, mx.bfloat16):
                    layer_norm_metal.backward(state.astype(dtype), gain, bias, state.astype(dtype), 1e-5, activation, needs)
        for mask in (None, mx.ones((batch,), mx.bool_)):
            for cell, norm in (("lstm", "layer"), ("lstm", "layer-cell"), ("gru", "layer")):
                proj, states = mx.zeros((batch, CELLS[cell].gates * hidden)), (state,) * len(CELLS[cell].states)
                norms = {name: mx.zeros(shape) for name, shape in norm_shapes(cell, norm, hidden).items()}
                steps = MetalSteps(None, cell, Settings(norm, 1e-5), None, norms)
                steps.backward(steps.forward(proj, proj, states, mask)[1], list(states))
    return made


EVERY = [(f"{name}, {b} x {h}", text) for b, h in ((1, 1), (2, 3), (3, 600)) for name, text in texts(b, h)]


def complaints(text):
    """What Clang finds wrong with a kernel."""
    body = re.sub(r"#include <metal_stdlib>", "", stand_in_metal._SHARED.sub(r"\1THREADGROUP_MEMORY ", text))
    unit = cindex.Index.create().parse(
        "kernel.cpp", args=["-x", "c++", "-std=c++14", "-nostdinc", "-Wno-unknown-attributes", "-Wno-pragma-once-outside-header"],
        unsaved_files=[("kernel.cpp", f"{WORDS}\n{body}")])
    messages = [str(d) for d in unit.diagnostics if d.severity >= cindex.Diagnostic.Warning]
    for node in unit.cursor.walk_preorder():
        if node.kind == cindex.CursorKind.LAMBDA_EXPR:
            messages.append(f"{node.location}: Metal has no lambdas before version 3.2")
        if re.search(r"\bdouble\b", node.type.get_canonical().spelling):
            messages.append(f"{node.location}: Metal has no double: {node.spelling or node.kind}")
    return messages


@pytest.mark.few
@pytest.mark.parametrize(("name", "text"), EVERY, ids=[name for name, _ in EVERY])
def test_clang_accepts_it(name, text):
    assert complaints(text) == []


@pytest.mark.parametrize(("old", "new", "word"), [
    ("thread float (&value)[N], threadgroup float* shared", "thread float (&value)[N], device float* shared", "no matching function"),
    ("template <class Cell, class Floats>", "template <class Cell>\nvoid load(thread float (&v)[Cell::GATES][UNITS], const device float* from, int row, int hidden, int t);\ntemplate <class Cell, class Unused>", "Floats"),
    ("hyperbolic_tangent(g)", "hyperbolic_tangent(g) * 1.0", "double"),
    ("mem_flags::mem_threadgroup", "mem_flags::mem_all", "mem_all")])
def test_clang_would_complain(old, new, word):
    text = next(t for name, t in EVERY if name.startswith("duoln_lstm_forward") and name.endswith("3 x 600"))
    assert old in text and any(word in c for c in complaints(text.replace(old, new)))


def test_small_arrays_are_in_constant_memory():
    small, large = (next(t for name, t in EVERY if name.startswith("duoln_gru_forward") and name.endswith(end))
                    for end in ("1 x 1", "3 x 600"))
    assert "const constant float* h_proj" in small and "const device float* h_proj" in large
    assert "const constant float& eps" in small and "const constant int* h_shape" in small
    assert source.metal("recurrent/gru/gru_forward.metal")[1] in large


def test_no_threadgroup_is_larger_than_any_pipeline_allows():
    kernel = metal.Kernel("recurrent/gru/gru_forward.metal", "h: float32[2]")
    with pytest.raises(KernelError, match=r"\[gru_forward\] expected at most 512 threads, found 1024"):
        kernel(1, 1024, (None,), {}, {})
    assert max(threads for threads, _ in METAL_LADDER) <= metal.MOST_THREADS
