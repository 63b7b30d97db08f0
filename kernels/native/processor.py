"""The CPU: what compiled code needs of it, and whether this machine's CPU has that.

Code with instructions that a CPU lacks ends the process. So what a compiler may use, as its macros say, is kept with
every library and compared with what the system says of the CPU.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

_INFO = Path("/proc/cpuinfo")
_X86 = re.compile(r"__(MMX|SSE\w*|SSSE3|POPCNT|AVX\w*|FMA4?|F16C|BMI2?|LZCNT|MOVBE|TBM|XOP|ADX|LAHF_SAHF|SHA\w*|AES"
                  r"|VAES|GFNI|PCLMUL|VPCLMULQDQ|SM3|SM4|APX_F|AMX_\w+)__$")
_ARM = re.compile(r"__ARM_FEATURE_(SVE2?|ATOMICS|FP16_VECTOR_ARITHMETIC|DOTPROD|BF16_VECTOR_ARITHMETIC|MATMUL_INT8"
                  r"|COMPLEX|JCVT|RCPC|CRC32|QRDMX|SME\w*)$")
_NAMES = {"sse3": "pni", "lzcnt": "abm", "bmi": "bmi1", "lahfsahf": "lahflm", "pclmul": "pclmulqdq", "sha": "shani",
          "fp16vectorarithmetic": "asimdhp", "dotprod": "asimddp", "bf16vectorarithmetic": "bf16",
          "matmulint8": "i8mm", "complex": "fcma", "jcvt": "jscvt", "rcpc": "lrcpc", "qrdmx": "asimdrdm"}
"""Compilers' names of instruction sets and Linux's, where they differ by more than underscores and case."""
_NO_SET = ("ssemath", "sse2math", "mmxwithsse")
"""Macros that sound like an instruction set and name none."""
_WIDTHS = (("__AVX512F__", 512), ("__AVX__", 256), ("__SSE2__", 128), ("__ARM_NEON", 128))


@cache
def identity() -> str:
    """The properties of this CPU that decide the code of `-march=native`."""
    if _INFO.exists():
        wanted = ("model name", "flags", "Features", "CPU part")
        lines = [line for line in _INFO.read_text().splitlines() if line.startswith(wanted)]
        return "\n".join(dict.fromkeys(lines))
    return f"{platform.machine()} {platform.processor()}"


@cache
def features() -> frozenset[str] | None:
    """The instruction sets of this CPU, by Linux's names without underscores; None where the system does not say."""
    if not _INFO.exists():
        return None
    lines = [line for line in _INFO.read_text().splitlines() if line.startswith(("flags", "Features"))]
    return frozenset(_plain(word) for line in lines for word in line.partition(":")[2].split())


def lacking(needs: Sequence[str]) -> list[str] | None:
    """The instruction sets in `needs` that this CPU lacks; None where the system does not say."""
    present = features()
    return None if present is None else [name for name in needs if name not in present]


def own_platform() -> str:
    """This machine's system and architecture."""
    return f"{sys.platform} {'arm64' if platform.machine() == 'aarch64' else platform.machine()}"


def platform_of(macros: Mapping[str, str]) -> str:
    """The system and architecture that a compiler with these macros compiles for, as `here` names them."""
    systems = (("__linux__", "linux"), ("__APPLE__", "darwin"), ("_WIN32", "win32"))
    kinds = (("__x86_64__", "x86_64"), ("__aarch64__", "arm64"), ("__i386__", "i386"), ("__arm__", "arm"))
    return " ".join(next((name for macro, name in table if macro in macros), "unknown") for table in (systems, kinds))


def needs_of(macros: Mapping[str, str]) -> list[str]:
    """The instruction sets that code compiled with these macros may use."""
    matches = [pattern.match(macro) for pattern in (_X86, _ARM) for macro in macros]
    names = {_plain(match[1]) for match in matches if match}
    return sorted(_NAMES.get(name, name) for name in names.difference(_NO_SET))


def vector_bits_of(macros: Mapping[str, str]) -> int:
    """The widest vectors that code with these macros may use; 0 where the CPU decides it while it runs."""
    if "__ARM_FEATURE_SVE" in macros:
        return int(macros.get("__ARM_FEATURE_SVE_BITS", "0"))
    return next((bits for macro, bits in _WIDTHS if macro in macros), 64)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
