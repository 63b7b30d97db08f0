"""A check of every Metal kernel by Clang instead of Metal's compiler: Metal is C++14 with address spaces.

Every text that the small cases launch is parsed with its signature as MLX writes it. `device`, `constant` and `threadgroup`
are different address spaces. Features that Metal does not have (lambdas, double) must not be in the text.
"""

import re
from functools import cache
from math import prod

import pytest
from conftest import TOOLS, get_backend

mx = pytest.importorskip("mlx.core", reason="MLX is not for this platform")
cindex = pytest.importorskip("clang.cindex", reason="libclang is a test dependency on Linux")

import stand_in_metal
from device_rules import cases
from zeros import zeros

from duoln.errors import KernelError
from duoln.kernels import source
from duoln.kernels.launch import Launch, metal
from duoln.kernels.launch.declared import Layout
from duoln.kernels.recurrent.plan import METAL_LADDER
from duoln.kernels.registry import STORED
from duoln.testing import selftest
from duoln.testing.hostgpu.metal import SHARED

WORDS = (TOOLS / "metal_words.h").read_text()


@cache
def texts():
    """Each kernel as MLX would give it to the compiler: every text of the small cases, by its name and the case. It takes seconds."""
    made = {}

    def metal_kernel(name, input_names, output_names, source, header):
        def run(inputs, output_shapes, output_dtypes, **unused):
            given = {n: stand_in_metal.on_host(x) for n, x in zip(input_names, inputs, strict=True)}
            out = {n: stand_in_metal.on_host(mx.zeros(s, d)) for n, s, d in zip(output_names, output_shapes, output_dtypes, strict=True)}
            everything = stand_in_metal.arguments(given, out, source)
            made.setdefault(stand_in_metal.signature(name, everything, source, header), f"{name}, {case}")
            return [mx.array(a) for a in out.values()]
        return run

    backend = get_backend("mlx")
    with pytest.MonkeyPatch.context() as patch, zeros():
        stand_in_metal.install(patch, metal_kernel)
        for case in small_cases():
            for rule in selftest.rules(case, backend):
                if rule.name.startswith("metal"):
                    run_with_every_need(rule, case, backend)
    return [(name, text) for text, name in made.items()]


def small_cases():
    """Those with a Metal rule, the smallest of them in 16 bits too."""
    for case in cases("metal"):
        if prod(case.sizes) <= MOST_VALUES:
            yield from (case._replace(stored=stored) for stored in ("float32", *STORED) if stored == "float32" or case.layouts)


def run_with_every_need(rule, case, backend):
    """Forward, and backward for all gradients, for the first array's alone, and for those of all others."""
    arrays = selftest._natives(case, backend, rule)
    out, saved = rule.forward(backend, *arrays, **case.attrs)
    gout = tuple(backend.zeros(o.shape, backend.dtype(o)) for o in (out if isinstance(out, tuple) else (out,)))
    floats = [a is not None and a.dtype != mx.bool_ for a in arrays]
    for needs in (floats, [f and k == 0 for k, f in enumerate(floats)], [f and k > 0 for k, f in enumerate(floats)]):
        rule.vjp(backend, saved, gout if isinstance(out, tuple) else gout[0], needs)


MOST_VALUES = 4000


def texts_of(kernel):
    """The texts of a kernel by their names."""
    return {name: text for name, text in texts() if name.startswith(f"duoln_{kernel}")}


def complaints(text):
    """The messages of Clang about a kernel."""
    body = re.sub(r"#include <metal_stdlib>", "", SHARED.sub(r"\1THREADGROUP_MEMORY ", text))
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


@pytest.mark.parametrize("kernel", stand_in_metal.KERNELS)
def test_clang_accepts_a_text_of_each_kernel(kernel):
    assert complaints(max(texts_of(kernel).values(), key=len)) == []


@pytest.mark.long
@pytest.mark.parametrize("kernel", stand_in_metal.KERNELS)
def test_clang_accepts_every_text(kernel):
    assert {name: complaints(text) for name, text in texts_of(kernel).items()} == {name: [] for name in texts_of(kernel)}


@pytest.mark.long
@pytest.mark.parametrize(("old", "new", "word"), [
    ("thread float (&value)[N], threadgroup float* shared", "thread float (&value)[N], device float* shared", "no matching function"),
    ("template <class Cell, class Floats>", "template <class Cell>\nvoid load(thread float (&v)[Cell::GATES][UNITS], const device float* from, int row, int hidden, int t);\ntemplate <class Cell, class Unused>", "Floats"),
    ("hyperbolic_tangent(g)", "hyperbolic_tangent(g) * 1.0", "double"),
    ("mem_flags::mem_threadgroup", "mem_flags::mem_all", "mem_all")])
def test_clang_would_complain(old, new, word):
    text = next(t for name, t in texts() if name.startswith("duoln_lstm_forward") and "layer T1 B3 in2 H600" in name)
    assert old in text and any(word in c for c in complaints(text.replace(old, new)))


def test_small_arrays_are_in_constant_memory():
    small, large = (next(t for name, t in texts() if name.startswith("duoln_gru_forward") and f"layer {sizes}" in name)
                    for sizes in ("T1 B1 in1 H1", "T1 B3 in2 H600"))
    assert "const constant float* h_proj" in small and "const device float* h_proj" in large
    assert "const constant float& eps" in small and "const constant int* h_shape" in small
    assert source.metal("recurrent/gru/gru_forward.metal")[1] in large


def test_no_threadgroup_is_larger_than_any_pipeline_allows():
    large = Launch("recurrent/gru/gru_forward", "gru_forward", "h: real[batch, hidden] -> next_h: like h", lambda batch: Layout((batch,), (1024,)))
    with pytest.raises(KernelError, match=r"\[gru_forward\] expected at most 512 threads, found 1024"):
        large["mlx"](mx.zeros((1, 2)))
    assert max(threads for threads, _ in METAL_LADDER) <= metal.MOST_THREADS
