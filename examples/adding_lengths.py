r"""Test sequences longer than all of training (section 3.1 of the paper), on the adding problem.

    python -m duoln.examples.adding_lengths              one seed: about five minutes
    python -m duoln.examples.adding_lengths --seeds 5    adding_lengths.json

An LSTM with layer norm, one with recurrent batch norm and a plain one are trained on sequences of 50 time steps (see
`duoln.examples.adding`), and tested at 50, 75, 100 and 200. Batch norm is tested by statistics of each time step over
1,000 training sequences; what is longer goes on with those of the last step (Cooijmans et al. 2017, section 3).

The rules, fixed before any run. Rate: of 0.001, 0.003, 0.01 and 0.03 the one with the lowest validation error after the
last update, at a seed that is none of those shown. Verdict: a norm has no problem with a length if its error is below
0.01 with each seed, and a problem if it is above with each.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from typing import Any

import duoln
from duoln import Stream
from duoln.examples import adding, records
from duoln.examples.adding import CHOICE_SEED, SOLVED, Adder, Record, Run, Settings
from duoln.extend import Backend
from duoln.nn import with_population
from duoln.ops.recurrent.variants import Norm

NORMS: tuple[Norm, ...] = ("layer", "batch", "none")
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
LENGTHS = (50, 75, 100, 200)
_ROWS = 1000


def train(norm: Norm, rate: float, seed: int, backend: Backend, settings: Settings) -> Run:
    """Train one variant and test it at each length."""
    model, begin = Adder(norm, settings.hidden), time.perf_counter()
    *_, (loss, params) = adding.training(model, rate, seed, backend, settings)

    def drawn(name: str, length: int) -> Any:
        return duoln.to_tensors(adding.make_batch(Stream(seed, name), _ROWS, length), backend)

    tested = with_population(model, params, [drawn("adding population", settings.length)["x"]])
    errors = {str(length): adding.error(model, tested, drawn("adding test", length)).item() for length in LENGTHS}
    return Run(norm, rate, seed, seed == CHOICE_SEED, time.perf_counter() - begin, [loss], records.provenance(backend),
               {length: float(f"{error:.4g}") if math.isfinite(error) else None for length, error in errors.items()})


def table(record: Record) -> str:
    """A line for each norm: its error at each length, over the seeds."""
    lines = [f"The adding problem, trained at {record.settings['length']} time steps: mean squared error by the length "
             "of test sequences,", f"median (least to greatest) of the seeds; below {SOLVED} it is solved.", "",
             f"{'norm':6}{'rate':>6}  {''.join(f'{length:<29}' for length in LENGTHS)}".rstrip()]
    for norm in NORMS:
        runs = [run for run in record.runs if run.norm == norm and not run.choice]
        errors = ([run.errors[str(length)] for run in runs] for length in LENGTHS)
        cells = (records.spread([math.nan if error is None else error for error in at], ".5f") for at in errors)
        lines.append(f"{norm:6}{record.chosen(norm):6g}  {''.join(f'{cell:29}' for cell in cells)}".rstrip())
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None, settings: Settings | None = None) -> Record:
    """Train, print the table, write `adding_lengths.json`."""
    parser = records.parser("adding_lengths", __doc__)
    parser.add_argument("--choose", type=float, nargs="+", default=list(RATES), metavar="RATE",
                        help="the rates of which one is chosen for each norm (default: 0.001 0.003 0.01 0.03)")
    args = parser.parse_args(argv)
    if args.seeds < 1:
        parser.error(f"--seeds: expected at least 1, found {args.seeds}")
    out = args.out / "adding_lengths.json"
    record = adding.measure(train, NORMS, (), args.seeds, args.choose, settings or Settings(), out)
    print(table(record))
    for path in records.write(record, out, summary=table(record), dataset=records.ADDING, solved=SOLVED):
        print(f"wrote {path}", file=sys.stderr)
    return record


if __name__ == "__main__":
    main()
