"""The bits of every operator and of every rule: a change that should keep them is proved by two files that are equal.

    python tests/tools/fingerprint.py --on numpy --write before.json
    python tests/tools/fingerprint.py --on numpy --against before.json
    python tests/tools/fingerprint.py --on cuda --every 5 --write before.json

`--on` is one of numpy, interpreted (NumPy without compiled rules), mlx, cuda (emulated) and metal (emulated). Each case
of `tests/ops/cases.py` runs through its operator, and each case of the fused rules through every rule that takes it:
values, and the gradients of a weighted sum of them. The two kernels' emulators run one case in `--every`, or those of the
file. The exit code
is 1 if a case differs or is gone; new ones are counted.
"""

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["DUOLN_THREADS"] = "1"
TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "kernels")]
PLACES = ("numpy", "interpreted", "mlx", "cuda", "metal")


def _digest(named):
    made = hashlib.blake2b(digest_size=12)
    for name, array in named:
        made.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return made.hexdigest()


def _of_operators(be):
    """Pairs (name of a case, bits) of the operators' own cases, by the rule that a call picks."""
    import numpy as np
    from ops.cases import CASES

    from duoln.core import Tensor
    from duoln.core.gradient import pullback

    for case in CASES:
        rng = np.random.default_rng(0)
        arrays = [np.asarray(a, np.float32) if np.asarray(a).dtype.kind == "f" else np.asarray(a)
                  for a in case.inputs(rng)]
        tensors = [Tensor(be.asarray(a), be) for a in arrays]
        floats = {str(k): t for k, t in enumerate(tensors) if arrays[k].dtype.kind == "f"} if case.differentiable else {}
        value, back, tape = pullback(lambda tracked, case=case, tensors=tensors: case.fn(
            *(tracked.get(str(k), t) for k, t in enumerate(tensors))), floats)
        outs = list(value) if isinstance(value, tuple | list) else [value]
        named = [(f"value {k}", be.to_numpy(o.data)) for k, o in enumerate(outs)]
        if case.differentiable:
            gouts = [be.asarray(rng.standard_normal(o.shape).astype(np.float32)) if o.dtype == "float32" else None
                     for o in outs]
            named += [(f"gradient {k}", be.to_numpy(g)) for k, g in sorted(back(gouts).items())]
        tape.closed = True
        yield f"operator {case.name}", _digest(named)


def _of_rules(be, every, names):
    """Pairs (case and rule, bits) of the fused rules' cases, or of those that are named."""
    from duoln.kernels.registry import every_case
    from duoln.testing import selftest

    named = {name.rpartition(" by ")[0] for name in names}
    for case in [c for c in every_case() if f"rule {c}" in named] or every_case()[::every]:
        for rule in selftest.rules(case, be):
            results, _ = selftest._results(be, rule, selftest._natives(case, be, rule), case)
            yield f"rule {case} by {rule.name}", _digest((name, be.to_numpy(x)) for name, x in results.items())


def fingerprint(on, every, names=()):
    """Each case's bits, by name."""
    if on == "interpreted":
        os.environ["DUOLN_NATIVE"] = "0"
    import conftest
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        if on == "metal":
            import stand_in_metal
            stand_in_metal.install(patch)
        be = conftest.get_backend({"interpreted": "numpy", "cuda": conftest.STAND_IN, "metal": "mlx"}.get(on, on))
        is_emulated = on in ("cuda", "metal")
        return {**({} if is_emulated else dict(_of_operators(be))), **dict(_of_rules(be, every if is_emulated else 1, names if is_emulated else ()))}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--on", choices=PLACES, required=True)
    parser.add_argument("--every", type=int, default=1, help="one of so many cases, where kernels are emulated")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--against", type=Path)
    args = parser.parse_args()
    before = json.loads(args.against.read_text()) if args.against else {}
    made = fingerprint(args.on, args.every, before)
    if args.write:
        args.write.write_text(json.dumps(made, indent=0))
    if not args.against:
        print(f"{len(made)} cases")
        return 0
    gone = sorted(before.keys() - made.keys())
    different = sorted(k for k in before.keys() & made.keys() if before[k] != made[k])
    print(f"{len(made)} cases, {len(different)} differ, {len(gone)} are gone, {len(made.keys() - before.keys())} are new")
    for what, names in (("differs", different), ("is gone", gone)):
        for name in names[:20]:
            print(f"  {what}: {name}")
    return int(bool(different or gone))


if __name__ == "__main__":
    sys.exit(main())
