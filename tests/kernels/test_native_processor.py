"""What code for a CPU needs of that CPU, from the compiler's macros; what this machine's CPU has, from the system."""

import pytest

from duoln.kernels import native
from duoln.kernels.native import processor, toolchain


@pytest.mark.parametrize(("macros", "platform", "needs", "bits"), [
    ("__linux__ __x86_64__ __SSE__ __SSE2__ __SSE2_MATH__", "linux x86_64", ["sse", "sse2"], 128),
    ("__linux__ __x86_64__ __SSE2__ __SSE3__ __SSE4_1__ __AVX__ __AVX2__ __FMA__ __BMI__ __LZCNT__ __LAHF_SAHF__",
     "linux x86_64", ["abm", "avx", "avx2", "bmi1", "fma", "lahflm", "pni", "sse2", "sse41"], 256),
    ("__linux__ __x86_64__ __AVX512F__ __AVX512VPOPCNTDQ__ __FMA4__ __znver4__", "linux x86_64",
     ["avx512f", "avx512vpopcntdq", "fma4"], 512),
    ("__APPLE__ __aarch64__ __ARM_NEON __ARM_FEATURE_DOTPROD", "darwin arm64", ["asimddp"], 128),
    ("__linux__ __aarch64__ __ARM_NEON __ARM_FEATURE_SVE __ARM_FEATURE_FMA", "linux arm64", ["sve"], 0), ("", "unknown unknown", [], 64)])
def test_what_macros_say(macros, platform, needs, bits):
    table = dict.fromkeys(macros.split(), "1")
    assert (processor.platform_of(table), processor.needs_of(table), processor.vector_bits_of(table)) == (platform, needs, bits)


@pytest.mark.parametrize(("info", "lacking"), [
    ("flags\t\t: sse sse2 avx512_vpopcntdq\nflags\t\t: sse\n", ["avx"]), ("Features\t: fp asimd AVX avx512_vpopcntdq\n", []),
    ("bogomips : 1\n", ["avx", "avx512vpopcntdq"]), (None, None)])
def test_what_a_cpu_lacks(info, lacking, tmp_path, monkeypatch):
    processor.features.cache_clear()
    monkeypatch.setattr(processor, "_INFO", tmp_path / "cpuinfo")
    if info is not None:
        (tmp_path / "cpuinfo").write_text(info)
    assert processor.lacking(["avx", "avx512vpopcntdq"]) == lacking
    processor.features.cache_clear()


@pytest.mark.skipif(native.compiler() is None or processor.features() is None, reason="a compiler and /proc/cpuinfo are needed")
def test_this_cpu_has_what_its_own_code_needs():
    target = toolchain.target(native.compiler(), "native")
    assert target.platform == processor.own_platform() and target.needs and processor.lacking(target.needs) == []
