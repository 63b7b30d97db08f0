"""LAS's sound files: RIFF wav, NIST SPHERE and FLAC read back, and refused where they are not what they claim."""

import struct
import sys
import wave
from importlib.util import find_spec

import numpy as np
import pytest

from duoln.errors import DataError, DataFormatError, UsageError
from duoln.plugins.las import audio
from duoln.plugins.las.audio import audio_length, read_audio
from duoln.testing import check_error

FLAC = pytest.mark.skipif(find_spec("soundfile") is None, reason="soundfile is not installed")
TONE = (8000 * np.sin(np.arange(4000) / 7)).astype("<i2")


def write_wav(path, samples=TONE, rate=16000, channels=1):
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())
    return path


def sphere(samples=TONE, rate=16000, **changes):
    """A NIST SPHERE file, as TIMIT has them."""
    fields = {"channel_count": "-i 1", "sample_count": f"-i {len(samples)}", "sample_rate": f"-i {rate}",
              "sample_n_bytes": "-i 2", "sample_byte_format": "-s2 01", "sample_sig_bits": "-i 16", **changes}
    head = "NIST_1A\n   1024\n" + "".join(f"{k} {v}\n" for k, v in fields.items() if v) + "end_head\n"
    return head.encode().ljust(1024, b"\n") + samples.tobytes()


def write_sphere(path, *args, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sphere(*args, **changes))
    return path


def write_flac(path, samples=TONE, rate=16000, subtype="PCM_16"):
    import soundfile

    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate, format="FLAC", subtype=subtype)
    return path


WRITERS = [write_wav, write_sphere, pytest.param(write_flac, marks=FLAC)]


@pytest.mark.parametrize("write", WRITERS)
def test_sound_is_read_back(tmp_path, write):
    path = write(tmp_path / "a.wav")
    sound = read_audio(path, 16000)
    assert sound.rate == 16000 and sound.samples.dtype == np.float32
    assert np.array_equal(sound.samples * 2 ** 15, TONE) and audio_length(path, 16000) == len(TONE)
    assert read_audio(path).rate == 16000


@pytest.mark.parametrize("write", WRITERS)
def test_another_rate(tmp_path, write):
    path = write(tmp_path / "a.wav", TONE, 8000)
    for read in (read_audio, audio_length):
        check_error(DataFormatError, lambda r=read: r(path, 16000), "a.wav", "16000", "8000")


@pytest.mark.parametrize("write", WRITERS)
def test_empty_and_truncated_sound(tmp_path, write):
    path = write(tmp_path / "a.wav")
    whole = path.read_bytes()
    for content in (whole[:3], whole[:-500], whole[:40], b""):
        path.write_bytes(content)
        check_error(DataFormatError, lambda: read_audio(path, 16000), "a.wav")
    check_error(DataFormatError, lambda: read_audio(write(tmp_path / "b.wav", TONE[:0]), 16000), "b.wav", "found")
    check_error(DataError, lambda: read_audio(tmp_path / "no.wav", 16000), "no.wav", "found nothing there")


def test_both_byte_orders(tmp_path):
    path = tmp_path / "a.wav"
    path.write_bytes(sphere(TONE.astype(">i2"), sample_byte_format="-s2 10"))
    assert np.array_equal(read_audio(path).samples * 2 ** 15, TONE)


@pytest.mark.parametrize(("changes", "words"), [
    ({"sample_coding": "-s26 pcm,embedded-shorten-v2.00"}, ["uncompressed", "shorten"]),
    ({"channel_count": "-i 2"}, ["channel_count 1", "2"]), ({"sample_n_bytes": "-i 1"}, ["sample_n_bytes 2"]),
    ({"sample_count": "-i 4001"}, ["8002 bytes", "8000"]), ({"sample_count": "-i 99999999999999"}, ["sample_count"]),
    ({"sample_rate": None}, ["sample_rate", "none"]), ({"sample_rate": "-i -5"}, ["sample_rate", "'-5'"]),
    ({"sample_rate": "-i 0"}, ["sample_rate", "'0'"]), ({"sample_byte_format": "-s2 11"}, ["01|10", "'11'"])])
def test_claims_of_a_sphere_header_are_checked(tmp_path, changes, words):
    check_error(DataFormatError, lambda: read_audio(write_sphere(tmp_path / "a.wav", **changes)), "a.wav", *words)


@pytest.mark.parametrize(("content", "words"), [
    (b"NIST_1A\n    xyz\n", ["header's length", "xyz"]), (b"NIST_1A\n   9999\nend_head\n", ["header's length", "9999"]),
    (b"NIST_1A\n     20\n    end", ["end_head"]), (b"MThd\0\0\0\6", ["RIFF wav, NIST SPHERE or FLAC", "MThd"])])
def test_headers_that_are_none(tmp_path, content, words):
    (tmp_path / "a.wav").write_bytes(content)
    check_error(DataFormatError, lambda: read_audio(tmp_path / "a.wav"), "a.wav", *words)


def _riff(*chunks):
    body = b"".join(name + struct.pack("<I", len(content) if size is None else size) + content + b"\0" * (len(content) % 2)
                    for name, content, size in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WAVE" + body


_FORMAT = struct.pack("<HHIIHH", 1, 1, 16000, 32000, 2, 16)


def test_chunks_around_the_samples_are_left_alone(tmp_path):
    (tmp_path / "a.wav").write_bytes(_riff((b"LIST", b"odd", None), (b"fmt ", _FORMAT, None), (b"data", TONE.tobytes(), None), (b"id3 ", b"x", None)))
    assert len(read_audio(tmp_path / "a.wav", 16000).samples) == len(TONE)


@pytest.mark.parametrize(("content", "words"), [
    (_riff((b"data", b"ab", None)), ["undamaged RIFF wav"]), (_riff((b"fmt ", _FORMAT, None)), ["undamaged RIFF wav"]),
    (_riff((b"fmt ", _FORMAT, None), (b"data", b"abcd", 0x7FFF0000)), ["1073709056 samples", "2"]),
    (_riff((b"fmt ", _FORMAT[:10], None)), ["undamaged RIFF wav"]), (b"RIFF\0\0\0\0AVI ", ["undamaged RIFF wav"]),
    (_riff((b"fmt ", struct.pack("<HHIIHH", 3, 1, 16000, 64000, 4, 32), None), (b"data", b"", None)), ["unknown format: 3"]),
    (_riff((b"fmt ", struct.pack("<HHIIHH", 1, 2, 16000, 64000, 4, 16), None), (b"data", b"", None)), ["2 channels"])])
def test_claims_of_a_riff_header_are_checked(tmp_path, content, words):
    (tmp_path / "a.wav").write_bytes(content)
    check_error(DataFormatError, lambda: read_audio(tmp_path / "a.wav"), "a.wav", *words)


@FLAC
def test_other_kinds_of_flac(tmp_path):
    check_error(DataFormatError, lambda: read_audio(write_flac(tmp_path / "a.flac", np.stack((TONE, TONE), 1))), "2 channels")
    check_error(DataFormatError, lambda: read_audio(write_flac(tmp_path / "b.flac", subtype="PCM_24")), "PCM_24")
    whole = bytearray(write_flac(tmp_path / "c.flac").read_bytes())
    whole[21:26] = b"\xf0\xff\xff\xff\xff"  # the header's count of samples: 68 thousand million of nearly nothing
    (tmp_path / "c.flac").write_bytes(whole)
    check_error(DataFormatError, lambda: audio_length(tmp_path / "c.flac", 16000), "c.flac")
    check_error(DataFormatError, lambda: read_audio(tmp_path / "c.flac"), "c.flac")


def test_flac_without_soundfile(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    (tmp_path / "a.flac").write_bytes(b"fLaC")
    check_error(UsageError, lambda: read_audio(tmp_path / "a.flac"), "a.flac", "duoln[speech]")


def test_nothing_is_too_large_by_chance(tmp_path, monkeypatch):
    monkeypatch.setattr(audio, "_MAX_BYTES", 100)
    check_error(DataFormatError, lambda: read_audio(write_wav(tmp_path / "a.wav")), "a.wav", "at most 100")
