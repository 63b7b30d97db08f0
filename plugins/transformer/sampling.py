"""Text from a trained model, a character at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from duoln import Stream, tensor
from duoln.data.files import write_whole
from duoln.errors import DivergedError, UsageError
from duoln.nn import Params
from duoln.plugins.transformer.corpus import ALPHABET
from duoln.plugins.transformer.model import CharacterTransformer
from duoln.tasks import option
from duoln.tasks.values import Trained


@dataclass(frozen=True)
class Options:
    """The options of `duoln sample transformer`."""

    text: str = option("It was", "what to continue: letters, digits, space, line ends and . , ; : ! ? ' \" - ( )")
    characters: int = option(400, "how many to write")
    temperature: float = option(0.8, "below 1: likely characters more often")
    seed: int = option(0, "of the draws")


def sample(trained: Trained, options: Options, out: Path) -> list[Path]:
    """Write a text and its continuation to `out`.

    Raises:
        UsageError: a text that the model cannot read, or an option out of range.
        DivergedError: the model gives no finite numbers. DataError: `out` cannot be written.
    """
    begin = ALPHABET.encode_strictly("transformer", options.text)
    assert isinstance(trained.model, CharacterTransformer)
    written = write(trained.model, trained.params, begin, options.characters, options.temperature, options.seed)
    return [write_whole(out, f"{options.text}{written}\n".encode())]


def write(model: CharacterTransformer, params: Params, begin: np.ndarray, characters: int, temperature: float,
          seed: int) -> str:
    """The characters that a model writes after those of `begin`.

    Each is drawn from softmax(logits / temperature), without the class of characters outside the alphabet. The model
    reads the last `model.length` characters anew for each, so a character costs as much as such a window does.

    Args:
        model, params: the model.
        begin: classes of characters, (n,), at least one.
        characters: how many.
        temperature: above 0.
        seed: of the draws.

    Raises:
        UsageError: a number of characters below 1, or a temperature that is not above 0 or not finite.
        DivergedError: the model gives no finite numbers.
    """
    if characters < 1:
        raise UsageError(f"[transformer] characters: expected at least 1, found {characters}")
    if not (math.isfinite(temperature) and temperature > 0):
        raise UsageError(f"[transformer] temperature: expected a finite number above 0, found {temperature}")
    backend = params["output"]["weight"].backend
    rng = Stream(seed, "transformer.sample")
    classes = begin.tolist()
    for k in range(characters):
        window = np.array([classes[-model.length:]], np.int32)
        logits = model.logits(params, tensor(window, backend)).numpy()[0, -1, :ALPHABET.unknown].astype(np.float64)
        if not np.isfinite(logits).all():
            raise DivergedError(f"[transformer] the model gives numbers that are not finite at character {k + 1}")
        classes.append(int(rng.categorical(logits=(logits - logits.max()) / temperature)))
    return ALPHABET.decode(classes[len(begin):])
