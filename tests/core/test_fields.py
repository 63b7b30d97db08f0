"""What `help` shows of the fields of public tuples: their types and defaults."""

import inspect
import pydoc
from typing import NamedTuple

import pytest

from duoln import data, extend, tasks
from duoln.core.fields import fields_in_words
from duoln.tasks import events
from duoln.training.train import TrainedRun

PUBLIC = {kind for module in (data, extend, tasks, events) for kind in vars(module).values()
          if inspect.isclass(kind) and hasattr(kind, "_fields")} | {TrainedRun}


@fields_in_words
class Pair(NamedTuple):
    """Two values."""

    first: int
    second: "str | None" = None


def test_a_field_has_its_type_and_its_default():
    assert (Pair.first.__doc__, Pair.second.__doc__) == ("int", "str | None, by default None")


@pytest.mark.parametrize("kind", sorted(PUBLIC, key=lambda kind: kind.__name__), ids=lambda kind: kind.__name__)
def test_public_tuples(kind):
    assert len(PUBLIC) > 8 and "Alias for field number" not in pydoc.plain(pydoc.render_doc(kind))
