"""`duoln.summary`: the layers of a model as a table, with the sizes of outputs and parameters and the memory."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from duoln import runtime
from duoln.core import Tensor
from duoln.core.arguments import described
from duoln.core.footprint import kept_bytes
from duoln.errors import DtypeError
from duoln.nn import Module, Params, no_dropout
from duoln.nn.example import inputs_of
from duoln.nn.observing import observed, own_arrays
from duoln.training.memory import format_bytes

_WIDTH = 80
_INDENT = "  "
_HEADINGS = ("layer", "kind", "output", "calls", "parameters", "activations")
_NUMBERS = ("calls", "parameters", "activations")
_FORMS = ((_HEADINGS, 2), (("layer", "kind", "output", "parameters", "activations"), 2),
          (("layer", "kind", "output", "parameters", "activations"), 1),
          (("layer", "output", "parameters", "activations"), 1))
"""The columns of a table and the spaces between them, the widest form first. Without a column of its own the number of
calls stands behind the shape.
"""


class Row(NamedTuple):
    """One layer of a summary."""

    path: str
    """As in the parameters, with dots; empty for the model itself."""
    layer: str
    """The class."""
    output: tuple[int, ...] | None
    """The shape of the first call's output; None for a layer that was not called."""
    calls: int
    parameters: int
    """Numbers in the layer's own arrays, without those of the layers in it, so that all rows add up to the model's."""
    parameter_bytes: int
    activation_bytes: int
    """Bytes of the outputs of all calls; 0 for a layer with children, whose output is that of a child."""
    parts: int
    """The number of layers directly in it."""


class Summary(NamedTuple):
    """The layers of a model, in the order of its parameters. `print(summary)` shows a table."""

    rows: tuple[Row, ...]
    parameters: int
    """Numbers in all arrays of the model."""
    parameter_bytes: int
    training_bytes: int
    """Bytes of the gradients and of Adam's two moments: three times those of the parameters."""
    activation_bytes: int
    """Bytes that a forward pass keeps for the gradient, as measured: the saved values of all operators, also of those
    between layers."""

    def text(self, width: int = _WIDTH) -> str:
        """The table and the totals in lines of that width at most.

        Where there is no room for all columns, there are fewer of them. The narrowest table stays whole, and so does a
        word that is longer than a line.
        """
        tables = (_table(self.rows, headings, gap) for headings, gap in _FORMS)
        lines: list[str] = []
        for lines in tables:
            if max(map(len, lines)) <= width:
                break
        return "\n".join([*lines, "", *(line for text in self._totals() for line in textwrap.wrap(
            text, width, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False))])

    def _totals(self) -> list[str]:
        notes = ["not called: arrays of such a layer may be used without a call of it"] \
            if any(_is_missed(row) for row in self.rows) else []
        return [*notes, f"parameters: {self.parameters:,}, {format_bytes(self.parameter_bytes)}",
                f"gradients and Adam's moments: {format_bytes(self.training_bytes)}",
                f"activations kept for the gradient: {format_bytes(self.activation_bytes)}"]

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, console: Any, options: Any) -> Iterator[str]:
        """The text that rich prints, for the width of its console, in which a bracket is no markup."""
        yield self.text(options.max_width).replace("[", "\\[")


def summary(model: Module, shapes: Any) -> Summary:
    """The layers of a model with the shapes of their outputs, their parameters and the memory that they need.

        print(duoln.summary(model, (128, 784)))
        duoln.summary(nn.LSTM(8, 16), {"x": (100, 32, 8), "mask": ((100, 32), "bool")})

    The model is called once, on NumPy, with initial parameters and made inputs. Dropout has no masks in it.

    Args:
        model: the model, which is called as `model(params, ...)`.
        shapes: what stands for the input. A shape stands for gaussian numbers of float32; `(shape, "int32")` for
            zeros, such as ids, and `(shape, "bool")` for a mask that is true everywhere. An array or a tensor stands
            for itself. A list of these, or a tuple that is not a shape, gives several inputs by position. A dict gives
            them by name, if `__call__` has an argument of one of the names; else the model gets the dict, as a batch.

    Raises:
        DtypeError: the model is no Module, or an input is none of these. ShapeError: a size is below 0.
        DuolnError: what a layer raises, with the path of the layer and the shapes that it got before the message.
    """
    if not isinstance(model, Module):
        raise DtypeError(f"[summary] model: expected a Module, found {described(model)}")
    args, kwargs = inputs_of("summary", model, shapes)
    backend = runtime.backend("numpy")
    args, kwargs = runtime.to_tensors(args, backend), runtime.to_tensors(kwargs, backend)
    params = runtime.init(model, 0, backend)
    return summary_of(model, params, lambda p: model(p, *args, **kwargs))


def summary_of(model: Module, params: Params, forward: Callable[[Params], Any]) -> Summary:
    """The summary of a model that `forward(params)` calls, in whatever way."""
    calls: dict[str, list[Tensor]] = {}

    def tell(path: str, layer: Module, output: Tensor) -> None:
        calls.setdefault(path, []).append(output)

    with observed(model, tell), no_dropout():
        kept = kept_bytes(forward, params)
    rows = tuple(_row(path, layer, own_arrays(layer, params, path), calls.get(path, []))
                 for path, layer in model.modules())
    count, whole = sum(row.parameters for row in rows), sum(row.parameter_bytes for row in rows)
    return Summary(rows, count, whole, 3 * whole, kept)


def _row(path: str, layer: Module, arrays: Sequence[Tensor], outputs: Sequence[Tensor]) -> Row:
    parts = len(layer.children())
    return Row(path, type(layer).__name__, outputs[0].shape if outputs else None, len(outputs),
               sum(a.size for a in arrays), sum(a.data.nbytes for a in arrays),
               0 if parts else sum(x.data.nbytes for x in outputs), parts)


# The text -----------------------------------------------------------------------------------------------

def _is_missed(row: Row) -> bool:
    """True if no call of a layer was seen; one that only has others in it may have been called in parts."""
    return not row.calls and not row.parts


def _named(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """Each row with the layer's name in the layer around it, behind a space for each of those around."""
    around: list[str] = []
    for row in rows:
        while around and not row.path.startswith(around[-1]):
            around.pop()
        yield row, len(around) * _INDENT + (row.path.removeprefix(around[-1]) if around else "model")
        around.append(f"{row.path}." if row.path else "")


def _cells(row: Row, name: str) -> tuple[str, ...]:
    output = str(row.output) if row.output is not None else "not called" if _is_missed(row) else ""
    return (name, row.layer, output, str(row.calls) if output else "",
            f"{row.parameters:,}" if row.parameters else "",
            format_bytes(row.activation_bytes) if row.activation_bytes else "")


def _table(rows: Sequence[Row], headings: Sequence[str], gap: int) -> list[str]:
    columns = [[heading] for heading in headings]
    for row, name in _named(rows):
        cells = dict(zip(_HEADINGS, _cells(row, name), strict=True))
        if "calls" not in headings and row.calls > 1:
            cells["output"] += f" x{row.calls}"
        for heading, column in zip(headings, columns, strict=True):
            column.append(cells[heading])
    widths = [max(map(len, column)) for column in columns]
    aligned = [[cell.rjust(n) if heading in _NUMBERS else cell.ljust(n) for cell in column]
               for heading, column, n in zip(headings, columns, widths, strict=True)]
    lines = [(" " * gap).join(cells).rstrip() for cells in zip(*aligned, strict=True)]
    return [lines[0], "-" * max(map(len, lines)), *lines[1:]]
