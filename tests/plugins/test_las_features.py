"""LAS's features against closed forms and second formulas; edit distance against brute force."""

import itertools

import numpy as np
import pytest

from duoln.errors import DataFormatError
from duoln.plugins.las import features as f, search
from duoln.plugins.las.corpus import CHARACTERS, FOLDED, LETTERS, PHONES, TIMIT
from duoln.plugins.las.search import edits, error_rate
from duoln.testing import check_error

RATES = (8000, 16000)


def _mel_energies(samples, rate, mels):
    return f.power_spectra(samples, rate, "x") @ f.filterbank(mels, rate).T


# The filterbank -----------------------------------------------------------------------------------------

@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("mels", [1, 23, 40])
def test_filters_against_straight_lines_between_corners(mels, rate):
    """Corner by corner from the inverse of HTK's mel scale, and NumPy's interpolation in the place of min and max."""
    def hertz(mel):
        return 700 * (np.exp(mel * np.log(10) / 2595) - 1)

    highest = 2595 * np.log(1 + rate / 1400) / np.log(10)
    corners = [hertz(highest * k / (mels + 1)) for k in range(mels + 2)]
    assert corners[-1] == pytest.approx(rate / 2)
    bins = [k * rate / f.fft_length(rate) for k in range(f.fft_length(rate) // 2 + 1)]
    expected = [np.interp(bins, corners[m:m + 3], [0, 1, 0], left=0, right=0) for m in range(mels)]
    filters = f.filterbank(mels, rate)
    np.testing.assert_allclose(filters, expected, atol=1e-12)
    assert (filters.sum(1) > 0).all()  # no filter falls between two bins


def test_frames_of_25_ms_every_10():
    assert [(f.frame_length(r), f.fft_length(r)) for r in RATES] == [(200, 256), (400, 512)]
    for rate in RATES:
        n = f.frame_length(rate)
        for samples in (n, n + 1, n + rate // 100 - 1, n + rate // 100, rate):
            assert len(f.power_spectra(np.zeros(samples), rate, "x")) == f.frame_count(samples, rate)
        assert f.frame_count(n - 1, rate) == 0 and f.frame_count(0, rate) == 0


# Closed forms -------------------------------------------------------------------------------------------

def _window_spectrum(omega, n):
    """The transform of a Hamming window of n samples at any angle: three of Dirichlet's kernels."""
    def dirichlet(w):
        half = np.sin(w / 2)
        near = np.abs(half) < 1e-9
        size = np.where(near, n, np.sin(n * w / 2) / np.where(near, 1, half))
        return size * np.exp(-0.5j * w * (n - 1))

    step = 2 * np.pi / (n - 1)
    return 0.54 * dirichlet(omega) - 0.23 * (dirichlet(omega - step) + dirichlet(omega + step))


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("hertz", [310.0, 1234.5, 3100.0])
def test_a_sine(hertz, rate):
    """Every frame's power spectrum from the sine's two lines, seen through pre-emphasis and window."""
    amplitude, phase, n, hop, size = 0.3, 0.7, f.frame_length(rate), rate // 100, f.fft_length(rate)
    omega = 2 * np.pi * hertz / rate
    samples = amplitude * np.cos(omega * np.arange(rate // 4) + phase)
    response = 1 - f.PRE_EMPHASIS * np.exp(-1j * omega)
    bins = 2 * np.pi * np.arange(size // 2 + 1) / size
    spectra = f.power_spectra(samples, rate, "sine")
    for frame in range(1, len(spectra)):  # the first frame has the first sample, which has no sample before it
        line = 0.5 * amplitude * response * np.exp(1j * (omega * frame * hop + phase))
        spectrum = line * _window_spectrum(bins - omega, n) + np.conj(line) * _window_spectrum(bins + omega, n)
        np.testing.assert_allclose(spectra[frame], np.abs(spectrum) ** 2 / size, rtol=1e-8, atol=1e-13)
    mels = spectra @ f.filterbank(40, rate).T
    peaks = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + rate / 1400), 42)[1:-1] / 2595) - 1)
    assert abs(mels.mean(0).argmax() - np.abs(peaks - hertz).argmin()) <= 1


def test_differences_of_lines_and_parabolas():
    t = np.arange(12.0)
    values = np.stack((3 * t + 1, t * t, np.full(12, 7.0)), axis=1)
    deltas = f.deltas(values)
    np.testing.assert_allclose(deltas[2:-2], np.stack((np.full(8, 3.0), 2 * t[2:-2], np.zeros(8)), axis=1), atol=1e-12)
    for k, row in enumerate(deltas):  # each as a sum over its neighbours, the ends repeated
        at = [values[min(max(k + n, 0), 11)] for n in (-2, -1, 0, 1, 2)]
        np.testing.assert_allclose(row, (2 * (at[4] - at[0]) + (at[3] - at[1])) / 10, atol=1e-12)
    assert (f.deltas(np.ones((1, 2))) == 0).all()


def test_each_value_has_mean_0_and_deviation_1():
    rng = np.random.default_rng(1)
    samples = (0.1 * rng.standard_normal(9000) * np.linspace(0.1, 1, 9000)).astype(np.float32)
    values = f.features(samples, 8000, 23, "x")
    assert values.shape == (f.frame_count(9000, 8000), f.width(23)) == (111, 72) and values.dtype == np.float32
    np.testing.assert_allclose(values.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(values.std(0), 1, rtol=1e-4)
    np.testing.assert_allclose(f.features(5 * samples, 8000, 23, "x"), values, atol=1e-3)  # loudness is taken out
    static = np.log(np.concatenate((_mel_energies(samples, 8000, 23),
                                    f.power_spectra(samples, 8000, "x").sum(1, keepdims=True)), axis=1))
    np.testing.assert_allclose(values[:, :24], (static - static.mean(0)) / static.std(0), atol=1e-5)


def test_silence_and_a_single_frame_are_zeros():
    for samples in (np.zeros(2000), np.ones(200)):
        values = f.features(samples, 8000, 8, "x")
        assert np.isfinite(values).all() and np.abs(values).max() < 1e-3


@pytest.mark.parametrize(("samples", "words"), [
    (np.zeros(199), ["clip.wav", "one frame of 200", "199"]), (np.zeros(0), ["clip.wav", "found 0"]),
    (np.where(np.arange(400) == 250, np.nan, 0.0), ["clip.wav", "finite", "nan as sample 250"]),
    (np.where(np.arange(400) == 3, np.inf, 0.0), ["clip.wav", "inf as sample 3"])])
def test_clips_without_features(samples, words):
    check_error(DataFormatError, lambda: f.features(samples, 8000, 8, "clip.wav"), *words)


# Alphabets ----------------------------------------------------------------------------------------------

def test_61_labels_are_39_phones():
    assert len(PHONES) == 39 and len(set(FOLDED)) == 60 and set(FOLDED.values()) == set(PHONES) and "q" not in FOLDED
    assert (TIMIT.classes, LETTERS.classes) == (40, 29)
    for alphabet in (TIMIT, LETTERS):
        everything = alphabet.encode(alphabet.symbols)
        assert everything.min() == 1 and everything.max() == alphabet.classes - 1
        assert alphabet.decode(everything) == list(alphabet.symbols)
    assert LETTERS.decode(np.array([3, 1, 20, 0, 5])) == ["c", "a", "t"] and LETTERS.decode(np.array([0, 1])) == []


# Edit distance ------------------------------------------------------------------------------------------

def _distances(text, strings):
    """How many edits away every string is, by breadth-first search, one edit a move.

    No longer strings are needed on the way: whatever is deleted or replaced may be so before anything is inserted.
    """
    distances, edge = {text: 0}, [text]
    while edge:
        following = []
        for s in edge:
            near = {s[:k] + s[k + 1:] for k in range(len(s))}
            near |= {s[:k] + a + s[k + width:] for width in (0, 1) for a in "abc" for k in range(len(s) + 1 - width)}
            following += (near & strings) - distances.keys()
            distances |= {neighbour: distances[s] + 1 for neighbour in following if neighbour not in distances}
        edge = following
    return distances


@pytest.mark.long
def test_edit_distance_against_brute_force():
    """All pairs of the 121 strings of at most 4 of three letters."""
    strings = {"".join(s) for n in range(5) for s in itertools.product("abc", repeat=n)}
    assert len(strings) == 121
    for reference in sorted(strings):
        nearest = _distances(reference, strings)
        assert nearest.keys() == strings
        for heard in strings:
            assert edits(reference, heard) == nearest[heard], (reference, heard)


def test_rates_are_added_up_over_the_corpus():
    assert error_rate(["abcd", "a"], ["abxd", "ba"]) == 2 / 5
    reference, heard = (LETTERS.encode(t) for t in ("one two", "one to x"))
    error_rates = search.rates([np.append(reference, [0, 0])], {"": [heard], "_greedy": [np.append(reference, 0)]}, phones=False)
    assert error_rates == {"per": 3 / 7, "wer": 1.0, "per_greedy": 0.0, "wer_greedy": 0.0}
    assert search.words("  one two ") == ["one", "two"]
    phones = TIMIT.encode(["sil", "ah"])
    assert search.rates([phones], {"": [phones[:1]]}, phones=True) == {"per": 0.5}
    assert set(CHARACTERS) == set("abcdefghijklmnopqrstuvwxyz '")
