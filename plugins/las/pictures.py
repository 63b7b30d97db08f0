"""Pictures: where the speller listened as it wrote, and how the weights of several runs are distributed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from duoln import Stream, Tensor, tensor
from duoln.errors import DivergedError, UsageError
from duoln.pictures import drawing, style
from duoln.plugins.las import data, search
from duoln.plugins.las.audio import read_audio
from duoln.plugins.las.corpus import SETS, Alphabet
from duoln.plugins.las.features import HOP_SECONDS, features
from duoln.plugins.las.model import LasModel
from duoln.tasks import Trained, option
from duoln.tasks.originals import in_home

_MOST = 16
_BINS = 61
_DEPTH = 1e4
"""The ratio of the highest to the lowest density shown; the legend is placed where there is none."""
_SHOWN = 0.999
"""Share of the weights that the histograms have room for."""


@dataclass(frozen=True)
class Options:
    """The options of `duoln sample las`."""

    count: int = option(4, f"how many utterances, evenly spread over the set; at most {_MOST}")
    set: str = option("test", f"of which set: {', '.join(SETS)}")
    audio: str | None = option(None, "a sound file (wav, NIST SPHERE or FLAC) to listen to in their place")


class Spelled(NamedTuple):
    """One utterance and its transcription."""

    name: str
    heard: np.ndarray
    """(frames, width): its features."""
    symbols: list[str] | None
    """The transcript; None if it is unknown."""
    written: list[str]
    """The hypothesis of beam search."""
    weights: np.ndarray
    """(symbols and the end, listener's steps): where the speller listened."""


def sample(trained: Trained, options: Options, out: Path) -> list[Path]:
    """Spell some utterances and draw where the speller listened.

    Raises:
        UsageError: a picture that cannot be drawn, or an option out of range.
        DataError: the corpus or the sound file is missing, damaged, or of another rate than the model has heard.
        DivergedError: the model gives no finite numbers.
    """
    drawing.check_picture(out)
    if options.set not in SETS:
        raise UsageError(f"[las] set: expected one of {', '.join(SETS)}; found {options.set!r}")
    if not 1 <= options.count <= _MOST:
        raise UsageError(f"[las] count: expected 1 to {_MOST}, found {options.count}")
    cfg, alphabet = trained.config, data.alphabet_of(trained.config.source)
    if options.audio is not None:
        path = in_home(options.audio)
        sound = read_audio(path, data.rate_of(cfg.source))
        chosen: list[tuple[str, np.ndarray, list[str] | None]] = [(
            path.name, features(sound.samples, sound.rate, cfg.mels, str(path)), None)]
    else:
        source, _ = data.load(cfg, None)
        chosen = [(f"{source.dataset.name}\n{options.set} {k + 1}",
                   features(u.read(), source.rate, cfg.mels, u.name), list(u.symbols))
                  for k, u in enumerate(data.evenly_spaced(source.sets[options.set], options.count))]
    draw_attention([Spelled(name, heard, symbols, *spell(trained, heard, alphabet)) for name, heard, symbols in chosen],
                   cfg.mels, out)
    return [out]


def spell(trained: Trained, heard: np.ndarray, alphabet: Alphabet) -> tuple[list[str], np.ndarray]:
    """The symbols that a model writes for one utterance's features, and the attention's weights.

    Raises:
        DivergedError: the model gives no finite numbers.
    """
    model, params = trained.model, trained.params
    assert isinstance(model, LasModel)
    be = params["speller"]["output"]["weight"].backend
    multiple = 2 ** trained.config.pyramids
    batch = data.as_batch([heard], [np.zeros(0, np.int32)], -(-len(heard) // multiple) * multiple, 1)
    listened = model.hear(params, {name: tensor(batch[name], be) for name in ("x", "mask")})
    beams = search.spell(model.speller, params["speller"], listened, model.beam, model.longest, model.length_penalty)
    best = search.backtrack(beams.symbols.numpy().astype(np.int64), beams.parents.numpy().astype(np.int64))[0]
    written = alphabet.decode(best)
    labels = best[:len(written) + 1, None].astype(np.int32)
    weights = model.speller.teacher_force(params["speller"], listened, tensor(labels, be), {})[1].numpy()[:, 0]
    if not np.isfinite(weights).all():
        raise DivergedError("[las] the model gives numbers that are not finite")
    return written, weights[:, :-(-len(heard) // multiple)]


def draw_attention(spellings: list[Spelled], mels: int, out: Path) -> None:
    """The features above, the attention weights of each symbol below, and time from left to right.

    The darkest place of each clip is that of its greatest weight.
    """
    low = max(1.6, 0.15 * max(len(one.weights) for one in spellings))
    with drawing.figure(out, 2, len(spellings), (2.8 * len(spellings) + 0.6, 2.6 + low), sharex="col",
                         gridspec_kw={"height_ratios": (1.6, low)}) as (_, axes):
        for (top, bottom), one in zip(axes.T, spellings, strict=True):
            seconds = len(one.heard) * HOP_SECONDS
            extent = (0.0, seconds)
            top.imshow(one.heard[:, :mels].T, origin="lower", aspect="auto", extent=(*extent, 0, mels), cmap="magma")
            heading = "" if one.symbols is None else f"said “{_text(one.symbols)}”\n"
            top.set_title(f"{one.name}\n{heading}wrote “{_text(one.written)}”", fontsize=9)
            rows = len(one.weights)
            bottom.imshow(one.weights, aspect="auto", extent=(*extent, rows, 0), cmap="gray_r", vmin=0,
                          interpolation="nearest")
            bottom.set_yticks(np.arange(rows) + 0.5, [*one.written, "end"][:rows], fontsize=8)
            bottom.set_xlabel("seconds", fontsize=8)
        axes[0, 0].set_ylabel("mel filters", fontsize=8)
        axes[1, 0].set_ylabel("symbols, downwards", fontsize=8)


def draw_side_by_side(runs: Mapping[str, Trained], variants: Iterable[str], out: Path) -> Path:
    """One utterance of the test set, the middle one, as the model of each run listened to it and spelled it.

    The runs stand in the order of `variants`, which are all variants of the task.

    Raises:
        DataError: the corpus of a run is missing or damaged.
    """
    spellings, order = [], list(variants)
    for name, trained in sorted(runs.items(), key=lambda run: order.index(run[1].variant)):
        cfg = trained.config
        source, _ = data.load(cfg, None)
        chosen = source.sets["test"][len(source.sets["test"]) // 2]
        heard = features(chosen.read(), source.rate, cfg.mels, chosen.name)
        spellings.append(Spelled(f"{name}\n{source.dataset.name}", heard, list(chosen.symbols),
                                 *spell(trained, heard, source.alphabet)))
    draw_attention(spellings, max(trained.config.mels for trained in runs.values()), out)
    return out


def _text(symbols: list[str]) -> str:
    """Characters run together, phones with spaces between."""
    return ("" if all(len(s) == 1 for s in symbols) else " ").join(symbols)


# Weights ----------------------------------------------------------------------------------------------

def draw_weights(runs: Mapping[str, Trained], variants: Iterable[str], out: Path) -> Path:
    """The distributions of the LSTMs' weights at the end of each run, and at the start of the first.

    `variants` are all variants of the task.
    """
    of_runs = style.run_looks([trained.variant for trained in runs.values()], variants)
    looks: dict[str, dict[str, Any]] = {"start": {"color": "0.6", "linestyle": ":"},
                                        **{name: look.line() for name, look in zip(runs, of_runs, strict=True)}}
    panels = [(part, kind) for part in ("listener", "speller") for kind in ("w_x", "w_h")]
    first = next(iter(runs.values()))
    start = first.model.init(Stream(first.config.seed, "init"))
    with drawing.figure(out, 2, 2, (8.6, 6.4)) as (_, axes):
        for axis, (part, kind) in zip(axes.flat, panels, strict=True):
            values = {"start": np.concatenate(list(_weights(start[part], kind)))}
            for name, trained in runs.items():
                values[name] = np.concatenate(list(_weights(trained.params[part], kind)))
            reach = max(float(np.quantile(np.abs(v), _SHOWN)) for v in values.values())
            edges = np.linspace(-reach, reach, _BINS)
            for name, of_model in values.items():
                density = np.histogram(of_model, edges)[0] / (len(of_model) * (edges[1] - edges[0]))
                axis.stairs(density, edges, label=f"{name} (deviation {of_model.std():.3f})", **looks[name])
            axis.set_title(f"{part}, {'input' if kind == 'w_x' else 'recurrent'} weights", fontsize=9)
            axis.set_yscale("log")
            axis.set_ylim(bottom=axis.get_ylim()[1] / _DEPTH)
            axis.legend(fontsize=7, loc="lower center")
        axes[0, 0].set_ylabel("density", fontsize=8)
        axes[1, 0].set_ylabel("density", fontsize=8)
    return out


def _weights(params: Mapping[str, Any], kind: str) -> Iterator[np.ndarray]:
    """All arrays of that name in a tree, flat."""
    for name, value in params.items():
        if isinstance(value, dict):
            yield from _weights(value, kind)
        elif name == kind:
            yield (value.numpy() if isinstance(value, Tensor) else value).reshape(-1)
