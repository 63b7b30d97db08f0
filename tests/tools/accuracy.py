"""How far functions of the compiled kernels are from what they should be, for one value and for vectors: a table of claims, compiled.

To check a formula, add a `Claim` to a table and give it to `compiled`; `check` gives the worst of an array of values.
"""

import ctypes
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from duoln.kernels import native
from duoln.kernels.native import toolchain
from duoln.kernels.source import FOLDER


class Claim(NamedTuple):
    """A formula beside what it should be."""

    value: str
    """A C++ expression of `x`, a value or a vector of the type `R`."""
    exact: str
    """One of `x` of a wider type `W`, with the functions of the standard library."""
    most: float = 4
    """How many units in the last place it may be away."""
    scale: str = "exact"
    """The expression whose last place is meant: where `exact` is a difference, its larger term."""


class Worst(ctypes.Structure):
    """The result of a check."""

    _fields_ = (("units", ctypes.c_double), ("x", ctypes.c_double), ("wrong", ctypes.c_double), ("wrong_x", ctypes.c_double),
                ("differing", ctypes.c_double), ("differing_x", ctypes.c_double))
    units: float
    """The most units in the last place between a value and the exact one, which was at `x`."""
    wrong: float
    """How many values are NaN, infinite or signed zeros where the exact ones are not, or the reverse; the last was at `wrong_x`."""
    differing: float
    """How many values have other bits alone than in a vector; the last was at `differing_x`."""


_TEXT = """
#include <limits>
#define CPU_KERNEL
#include "functions.h"
template <class T> struct Wider;
template <> struct Wider<float> { using type = double; };
template <> struct Wider<double> { using type = long double; };
struct Worst { double units, x, wrong, wrong_x, differing, differing_x; };

// One step of the last place at a value, with the exponents that T has.
template <class T, class W> static W unit_at(W value) {
    const T nearest = T(value), greatest = std::numeric_limits<T>::max();
    typename Whole<T>::bits bits = same_bits<typename Whole<T>::bits>(nearest < greatest ? nearest : greatest) >> Format<T>::FRACTION_BITS;
    bits += bits == 0;
    return W(same_bits<T>(bits << Format<T>::FRACTION_BITS)) * std::numeric_limits<T>::epsilon();
}

// Infinity counts as the number after the greatest one, because a value that is near it may round to it.
template <class T, class W> static W counted(W value) {
    const W after = W(std::numeric_limits<T>::max()) * (1 + W(std::numeric_limits<T>::epsilon()) / 2);
    return value > after ? after : value < -after ? -after : value;
}

template <class T, class Value, class Exact, class Scale>
static void check(const T* x, long n, Worst* worst, const Value& value, const Exact& exact_at, const Scale& scale_at) {
    using W = typename Wider<T>::type;
    using bits = typename Whole<T>::bits;
    T together[Vector<T>::lanes];
    for (long k = 0; k < n; k += Vector<T>::lanes) {
        store(together, value(load(x + k)));
        for (long j = 0; j < Vector<T>::lanes; ++j) {
            const T at = x[k + j], y = together[j], alone = value(at);
            if (same_bits<bits>(y) != same_bits<bits>(alone) && !(y != y && alone != alone)) ++worst->differing, worst->differing_x = at;
            const W exact = exact_at(W(at));
            if (exact != exact || y != y || exact - exact != 0 || (T(exact) == 0 && y == 0)) {
                const bool same = exact != exact ? y != y : W(y) == exact || y == T(exact);
                const bool has_sign = exact != 0 || std::fabs(at) <= 1;  // the reference lost it where it is 0 elsewhere
                if (!same || (y == 0 && has_sign && std::signbit(y) != std::signbit(exact))) ++worst->wrong, worst->wrong_x = at;
                continue;
            }
            const W away = std::fabs(counted<T>(W(y)) - counted<T>(exact)), units = away / unit_at<T>(std::fabs(scale_at(W(at), exact)));
            if (units > worst->units) worst->units = double(units), worst->x = at;
        }
    }
}
"""
_ENTRY = """
extern "C" void {name}_{T}(const {T}* values, long n, Worst* worst) {{
    using namespace std;
    check<{T}>(values, n, worst, [](auto x) {{ using R [[maybe_unused]] = decltype(x); return {claim.value}; }},
               [](auto x) {{ using W [[maybe_unused]] = decltype(x); return {claim.exact}; }},
               [](auto x, auto exact) {{ using W [[maybe_unused]] = decltype(x); (void)x; return {claim.scale}; }});
}}
"""
BLOCK = 1 << 20


class Checks:
    """A compiled table of claims."""

    def __init__(self, library: ctypes.CDLL, march: str) -> None:
        self._library, self.march = library, march

    def check(self, name: str, values: np.ndarray) -> Worst:
        """The worst of some values, float32 or float64; their number is a multiple of 16."""
        entry = getattr(self._library, f"{name}_{'float' if values.dtype == np.float32 else 'double'}")
        worst = Worst()
        entry(ctypes.c_void_p(values.ctypes.data), ctypes.c_long(len(values)), ctypes.byref(worst))
        return worst

    def check_all(self, name: str, step: int = 1, threads: int = 2) -> Worst:
        """The worst of all 2^32 values of float32, or of each `step`-th; all take some minutes."""
        def part(first: int) -> Worst:
            bits = np.arange(first, min(first + BLOCK * step, 1 << 32), step, dtype=np.int64).astype(np.uint32)
            return self.check(name, np.resize(bits, -(-len(bits) // 16) * 16).view(np.float32))

        with ThreadPoolExecutor(threads) as pool:
            worsts = list(pool.map(part, range(0, 1 << 32, BLOCK * step)))
        worst = max(worsts, key=lambda w: w.units)
        for kind in ("wrong", "differing"):
            counts = [getattr(w, kind) for w in worsts]
            setattr(worst, kind, sum(counts))
            setattr(worst, f"{kind}_x", getattr(worsts[int(np.argmax(counts))], f"{kind}_x"))
        return worst


def compiled(claims: Mapping[str, Claim], march: str, folder: Path, more: str = "") -> Checks:
    """Compiles a table for the CPU of that name; `more` is C++ before it."""
    compiler = native.compiler()
    assert compiler is not None
    entries = [_ENTRY.format(name=name, T=T, claim=claim) for name, claim in claims.items() for T in ("float", "double")]
    (folder / "checks.cpp").write_text(_TEXT + more + "".join(entries))
    subprocess.run([*compiler.command, *toolchain.flags_for(compiler, march), f"-I{FOLDER}/text", f"-I{FOLDER}/text/cpp", "-o", folder / "checks.so",
                    folder / "checks.cpp"], check=True)
    return Checks(ctypes.CDLL(str(folder / "checks.so")), march)


def samples(dtype: type[np.floating], borders: tuple[float, ...] = ()) -> np.ndarray:
    """Values of every sign and exponent, special ones, many between -40 and 40, and those around borders."""
    whole, most = (np.uint32, 1 << 32) if dtype is np.float32 else (np.uint64, 1 << 64)
    rng = np.random.default_rng(0)
    every = rng.integers(0, most - 1, 600_000, dtype=np.uint64, endpoint=True).astype(whole).view(dtype)
    info = np.finfo(dtype)
    special = np.array([0, np.inf, np.nan, 1, 2, info.max, info.tiny, info.smallest_subnormal, info.eps], dtype)
    near = np.concatenate([rng.uniform(-40, 40, 200_000), rng.uniform(-4, 4, 200_000), rng.uniform(-800, 800, 50_000)]).astype(dtype)
    steps = np.arange(-64, 65)
    ends = np.array([b for b in borders if b], dtype).view(whole).astype(np.int64)
    around = (ends[:, None] + steps).astype(whole).view(dtype).ravel()
    values = np.concatenate([special, -special, near, around, every])
    return np.resize(values, -(-len(values) // 64) * 64)
