"""Log-mel filterbank energies and the frame's energy, with first and second differences, normalised per utterance."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from duoln.errors import DataFormatError

WINDOW_SECONDS, HOP_SECONDS = 0.025, 0.010
PRE_EMPHASIS = 0.97
DELTA_REACH = 2
"""Frames on either side that a difference looks at."""
_FLOOR = 1e-10
"""Least energy that is believed, of samples in -1 .. 1: the square of a 16-bit step is 9e-10."""
_LEAST_DEVIATION = 1e-5
_BLOCK = 4096
"""Frames whose spectra are in memory at a time: 41 seconds, so that no utterance of a real corpus is split."""


def frame_length(rate: int) -> int:
    """Samples a frame."""
    return round(WINDOW_SECONDS * rate)


def frame_count(samples: int, rate: int) -> int:
    """The number of whole frames of a clip."""
    return max(0, 1 + (samples - frame_length(rate)) // round(HOP_SECONDS * rate))


def width(mels: int) -> int:
    """Values a frame: mels and energy, three times."""
    return 3 * (mels + 1)


@lru_cache(maxsize=8)
def filterbank(mels: int, rate: int) -> np.ndarray:
    """Triangles over the bins of a power spectrum, their corners evenly spaced in mel from 0 to half the rate.

    mel(f) = 2595 log10(1 + f / 700); a triangle rises linearly in Hz from 0 at its left neighbour's peak to 1 at its
    own and falls to 0 at its right neighbour's.

    Shape:
        -> float64 (mels, bins), bins = fft_length(rate) / 2 + 1.
    """
    top = 2595 * np.log10(1 + rate / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, mels + 2) / 2595) - 1)
    hertz = np.arange(fft_length(rate) // 2 + 1) * rate / fft_length(rate)
    left, peak, right = corners[:-2, None], corners[1:-1, None], corners[2:, None]
    filters = np.maximum(0.0, np.minimum((hertz - left) / (peak - left), (right - hertz) / (right - peak)))
    filters.flags.writeable = False
    return filters


def fft_length(rate: int) -> int:
    """The power of two that holds a frame: 512 at 16 kHz, 256 at 8 kHz."""
    return 1 << (frame_length(rate) - 1).bit_length()


def power_spectra(samples: np.ndarray, rate: int, name: str) -> np.ndarray:
    """|FFT|^2 / length of each frame: pre-emphasis over the whole clip, then frames under a Hamming window.

    Args:
        samples: float, 1.0 is the loudest that the file could hold.
        rate: samples a second.
        name: of the clip, for errors.

    Shape:
        samples (n,) -> float64 (frames, bins).

    Raises:
        DataFormatError: a clip shorter than one frame, or a sample that is not finite.
    """
    return np.concatenate(list(_power_blocks(samples, rate, name)))


def _power_blocks(samples: np.ndarray, rate: int, name: str) -> Iterator[np.ndarray]:
    """`power_spectra` of some frames at a time: those of a long clip take 30 times the memory of its samples."""
    length, hop = frame_length(rate), round(HOP_SECONDS * rate)
    if len(samples) < length:
        raise DataFormatError(name, 0, f"at least one frame of {length} samples", len(samples))
    if not np.isfinite(samples).all():
        position = int(np.argmin(np.isfinite(samples)))
        raise DataFormatError(name, 0, "finite samples", f"{samples[position]} as sample {position}")
    emphasised = samples.astype(np.float64)
    emphasised[1:] -= PRE_EMPHASIS * samples[:-1]
    windows = np.lib.stride_tricks.sliding_window_view(emphasised, length)[::hop]
    for first in range(0, len(windows), _BLOCK):
        spectra = np.fft.rfft(windows[first:first + _BLOCK] * np.hamming(length), fft_length(rate))
        yield (spectra.real ** 2 + spectra.imag ** 2) / fft_length(rate)


def deltas(values: np.ndarray) -> np.ndarray:
    """Slope of each value over the frames around it, by least squares; the first and last frame are repeated.

    d_t = sum_n n (c_{t+n} - c_{t-n}) / (2 sum_n n^2), n = 1 .. DELTA_REACH.

    Shape:
        (frames, width) -> the same.
    """
    padded = np.pad(values, ((DELTA_REACH, DELTA_REACH), (0, 0)), mode="edge")
    count, reach = len(values), range(1, DELTA_REACH + 1)
    total = sum(n * (padded[DELTA_REACH + n:DELTA_REACH + n + count] - padded[DELTA_REACH - n:DELTA_REACH - n + count])
                for n in reach)
    slopes: np.ndarray = total / (2.0 * sum(n * n for n in reach))
    return slopes


def features(samples: np.ndarray, rate: int, mels: int, name: str) -> np.ndarray:
    """The listener's inputs: mels and energy (logarithms), their slopes and the slopes' slopes.

    Each value has mean 0 and deviation 1 over the utterance; one that does not move is 0.

    Shape:
        samples (n,) -> float32 (frames, 3 (mels + 1)).

    Raises:
        DataFormatError: a clip shorter than one frame, or a sample that is not finite.
    """
    filters = filterbank(mels, rate).T
    energies = np.concatenate([np.concatenate((power @ filters, power.sum(axis=1, keepdims=True)), axis=1)
                               for power in _power_blocks(samples, rate, name)])
    static = np.log(np.maximum(energies, _FLOOR))
    slopes = deltas(static)
    whole = np.concatenate((static, slopes, deltas(slopes)), axis=1)
    whole -= whole.mean(axis=0)
    array: np.ndarray = (whole / np.maximum(whole.std(axis=0), _LEAST_DEVIATION)).astype(np.float32)
    return array
