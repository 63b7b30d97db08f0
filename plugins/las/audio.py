"""Sound files, mono of 16 bits: NIST SPHERE read here, RIFF wav by `wave`, FLAC by soundfile. No header is believed."""

from __future__ import annotations

import io
import re
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from duoln.data.bounded import CONTENT_ERRORS, opened, read_whole
from duoln.errors import DataFormatError, UsageError

MOST_SAMPLES = 1 << 22
"""The most samples of an utterance: 4 minutes at 16 kHz. FLAC can make a small file of any length of silence; the
longest utterances of LibriSpeech have 35 seconds."""
_MAX_BYTES = 4 * MOST_SAMPLES
"""The largest size of a file; other chunks may stand beside the samples."""
_FLAC_BLOCK = 1 << 16
_SPHERE = b"NIST_1A\n"
_SPHERE_SMALLEST, _SPHERE_LARGEST = 16, 1 << 16
_SPHERE_FIELDS = {"sample_coding": "pcm|", "channel_count": "1", "sample_n_bytes": "2", "sample_byte_format": "01|10|",
                  "sample_rate": "[1-9][0-9]{0,8}", "sample_count": "[0-9]{1,9}"}
"""The form of each field of a header that is read; nothing stands for a field that may be missing."""


class Sound(NamedTuple):
    """Samples and their description."""

    rate: int
    """Samples a second."""
    samples: np.ndarray
    """float32 (n,), 1.0 the loudest that 16 bits can hold."""


def read_audio(path: Path, rate: int | None = None) -> Sound:
    """A clip. Its first bytes decide the format, because TIMIT calls SPHERE files .WAV.

    Args:
        path: the file.
        rate: the rate that it must have; None accepts any.

    Raises:
        DataError: the file cannot be read.
        DataFormatError: the file has none of the formats, a compression other than FLAC, several channels, samples of
            other than 16 bits or another rate, or is damaged, truncated or empty.
        UsageError: the file is FLAC, and soundfile is not installed.
    """
    content = read_whole(path, _MAX_BYTES, "sound file")
    reader = next((read for magic, read in ((b"RIFF", _riff), (_SPHERE, _sphere), (b"fLaC", _flac))
                   if content.startswith(magic)), None)
    if reader is None:
        raise DataFormatError(path, 0, "a RIFF wav, NIST SPHERE or FLAC file",
                              f"{content[:8]!r}" if content else "an empty file")
    sound = reader(path, content)
    if rate is not None and sound.rate != rate:
        raise DataFormatError(path, 0, f"a rate of {rate} Hz", sound.rate)
    if not 1 <= len(sound.samples) <= MOST_SAMPLES:
        raise DataFormatError(path, len(content), f"1 to {MOST_SAMPLES} samples", len(sound.samples) or "none")
    return sound


def read_samples(path: Path, rate: int) -> np.ndarray:
    """The samples of a clip that has that rate; errors as those of `read_audio`."""
    return read_audio(path, rate).samples


def audio_length(path: Path, rate: int) -> int:
    """Samples of a clip that has that rate; FLAC is not decoded for it, but believed until it is read.

    Raises:
        as `read_audio`.
    """
    with opened(path, "sound file") as file:
        if file.read(4) == b"fLaC":
            file.seek(0)
            with _open_flac(path, file) as flac:
                own_rate, count = int(flac.samplerate), int(flac.frames)
            if own_rate != rate or not 0 < count <= MOST_SAMPLES:
                raise DataFormatError(path, 0, f"1 to {MOST_SAMPLES} samples at {rate} Hz", f"{count} at {own_rate} Hz")
            return count
    return len(read_audio(path, rate).samples)


@contextmanager
def _convert_read_errors(expected: str, path: Path, kind: type[Exception]) -> Iterator[None]:
    """An error of a reader in the block is the file's fault."""
    try:
        yield
    except (kind, *CONTENT_ERRORS) as error:
        raise DataFormatError(path, 0, expected, f"{type(error).__name__}: {error}") from error


def _sound(rate: int, values: np.ndarray) -> Sound:
    return Sound(rate, values.astype(np.float32) / np.float32(2 ** 15))


# RIFF -------------------------------------------------------------------------------------------------

def _riff(path: Path, content: bytes) -> Sound:
    with _convert_read_errors("an undamaged RIFF wav", path, wave.Error), wave.open(io.BytesIO(content)) as file:
        form, rate, count = (file.getnchannels(), 8 * file.getsampwidth()), file.getframerate(), file.getnframes()
        if form != (1, 16) or not rate:
            raise DataFormatError(path, 0, "1 channel, 16 bits, a rate above 0",
                                  f"{form[0]} channels, {form[1]} bits, {rate} Hz")
        values = np.frombuffer(file.readframes(count), "<i2")
    if len(values) != count:
        raise DataFormatError(path, len(content), f"{count} samples, as the header claims", len(values))
    return _sound(rate, values)


# NIST SPHERE ------------------------------------------------------------------------------------------

def _sphere(path: Path, content: bytes) -> Sound:
    """A header of text, its own length in the second line, `name -type value` a line, then the samples."""
    text = content[len(_SPHERE):_SPHERE_SMALLEST].strip()
    size = int(text) if text.isdigit() else 0
    if not _SPHERE_SMALLEST <= size <= min(_SPHERE_LARGEST, len(content)):
        raise DataFormatError(path, len(_SPHERE), f"a header's length between {_SPHERE_SMALLEST} and "
                              f"{min(_SPHERE_LARGEST, len(content))}", repr(text))
    fields: dict[str, str] = {}
    lines = content[_SPHERE_SMALLEST:size].decode("latin-1").split("\n")
    for line in lines:
        words = line.split(None, 2)
        if words[:1] == ["end_head"]:
            break
        if len(words) == 3:
            fields[words[0]] = words[2].strip()
    else:
        raise DataFormatError(path, size, "end_head", "the end of the header")
    for name, wanted in _SPHERE_FIELDS.items():
        if not re.fullmatch(wanted, fields.setdefault(name, "")):
            raise DataFormatError(path, 0, f"{name} {wanted} (pcm is uncompressed: `w_decode -o pcm` or `sph2pipe`)",
                                  repr(fields[name][:40]) if fields[name] else "none")
    rate, count = int(fields["sample_rate"]), int(fields["sample_count"])
    if 2 * count > len(content) - size:
        raise DataFormatError(path, size, f"{2 * count} bytes, as sample_count claims", len(content) - size)
    return _sound(rate, np.frombuffer(content, ">i2" if fields["sample_byte_format"] == "10" else "<i2", count, size))


# FLAC -------------------------------------------------------------------------------------------------

def _flac(path: Path, content: bytes) -> Sound:
    """Samples by soundfile, block by block, so that a false count in the header allocates no memory."""
    blocks: list[np.ndarray] = []
    with _open_flac(path, io.BytesIO(content)) as file:
        claimed, rate = int(file.frames), int(file.samplerate)
        if claimed > MOST_SAMPLES:
            raise DataFormatError(path, 0, f"at most {MOST_SAMPLES} samples", claimed)
        while sum(map(len, blocks)) <= claimed:
            blocks.append(file.read(_FLAC_BLOCK, dtype="int16"))
            if len(blocks[-1]) < _FLAC_BLOCK:
                break
    count = sum(map(len, blocks))
    if count != claimed:
        raise DataFormatError(path, len(content), f"{claimed} samples, as the header claims", count)
    return _sound(rate, np.concatenate(blocks))


@contextmanager
def _open_flac(path: Path, stream: IO[bytes]) -> Iterator[Any]:
    """A FLAC file as soundfile has it, mono and of 16 bits; what fails while it is open is the file's fault."""
    try:
        import soundfile  # late: only FLAC needs it
    except (ImportError, OSError) as error:  # OSError: its libsndfile is missing
        raise UsageError(f'{path}: FLAC needs soundfile: pip install "duoln[speech]" ({error})') from error
    with (_convert_read_errors("an undamaged FLAC file", path, soundfile.SoundFileError),
          soundfile.SoundFile(stream) as file):
        if (file.channels, file.subtype) != (1, "PCM_16"):
            raise DataFormatError(path, 0, "1 channel, PCM_16", f"{file.channels} channels, {file.subtype}")
        yield file
