"""A mutation fuzzer: a damaged file is a pure function of undamaged files and a number, so that every case can be
repeated.
"""

import io
import random
import re
import struct
import zipfile

NUMBERS = [0, 1, 2, 3, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1]
TEXTS = [b"-1", b"0", b"1", b"1e999", b"-1e999", b"NaN", b"Infinity", b"-Infinity", b"1.5", b"9" * 30, b"9" * 400, b"9" * 5000,
         b"null", b"true", b"[]", b"{}", b'""', b'"x"', b"0x7f", b"1_0", b"\xff\xfe", b"\xed\xa0\x80", b"\0", b"\n", b"\r\n"]
DEEP = [b"[" * 100_000, b'{"a":' * 100_000, b"(" * 50_000, b"<a>" * 50_000, b"-" * 50_000]
"""Nested texts, which exhaust the stack of a recursive parser."""


def mutate(rng: random.Random, whole: bytes, second: bytes) -> bytes:
    """Damage a file one to four times; `second` is another file, for a splice."""
    content = whole
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        content = rng.choice(_BLOWS)(rng, content, second)
    return content


def _stretch(rng, content, most=64):
    a = rng.randrange(len(content) + 1)
    return a, min(len(content), a + rng.randrange(1, most))


def _flip(rng, content, second):
    damaged = bytearray(content)
    for _ in range(rng.randrange(1, 6) if damaged else 0):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _truncate(rng, content, second):
    return content[:rng.randrange(len(content) + 1)]


def _remove(rng, content, second):
    a, b = _stretch(rng, content)
    return content[:a] + content[b:]


def _insert(rng, content, second):
    a = rng.randrange(len(content) + 1)
    new = rng.choice(TEXTS) if rng.random() < 0.5 else rng.randbytes(rng.randrange(1, 33))
    return content[:a] + new + content[a:]


def _insert_deep(rng, content, second):
    a = rng.choice((0, rng.randrange(len(content) + 1)))
    return content[:a] + rng.choice(DEEP) + content[a:]


def _duplicate(rng, content, second):
    a, b = _stretch(rng, content, 400)
    return content[:b] + content[a:b] * rng.choice((1, 1, 2, 50)) + content[b:]


def _swap(rng, content, second):
    a, b, c, d = sorted(rng.randrange(len(content) + 1) for _ in range(4))
    return content[:a] + content[c:d] + content[b:c] + content[a:b] + content[d:]


def _splice(rng, content, second):
    return content[:rng.randrange(len(content) + 1)] + second[rng.randrange(len(second) + 1):]


def _number_field(rng, content, second):
    """A binary number of 1 to 8 bytes, of either order, overwritten."""
    form, size = rng.choice((("B", 1), ("<H", 2), (">H", 2), ("<I", 4), (">I", 4), ("<Q", 8), (">Q", 8)))
    if len(content) < size:
        return content
    at = rng.randrange(min(len(content) - size, rng.choice((64, 10**9))) + 1)
    return content[:at] + struct.pack(form, rng.choice(NUMBERS) % 256**size) + content[at + size:]


def _number_text(rng, content, second):
    """Replace a number in a text by another one, or by a text that is no number."""
    matches = list(re.finditer(rb"-?\d+(\.\d+)?(e[-+]?\d+)?", content[:20_000]))
    if not matches:
        return content
    a, b = rng.choice(matches).span()
    return content[:a] + (rng.choice(TEXTS) if rng.random() < 0.7 else str(rng.choice(NUMBERS)).encode()) + content[b:]


def _value(rng, content, second):
    """A JSON value, or a quoted text, replaced."""
    matches = list(re.finditer(rb'"[^"]*"|\[[^\[\]{}]*\]|\{[^{}]*\}|true|false|null', content[:20_000]))
    if not matches:
        return content
    a, b = rng.choice(matches).span()
    return content[:a] + rng.choice(TEXTS) + content[b:]


_BLOWS = [_flip, _truncate, _remove, _insert, _duplicate, _swap, _splice, _number_field, _number_field, _number_text,
          _number_text, _value, _insert_deep]


def mutate_members(rng: random.Random, whole: bytes, second: bytes) -> bytes:
    """A zip whose own tables and checksums are right, and whose members are damaged, renamed, doubled or missing."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(io.BytesIO(second)) as archive:
        donor = archive.read(rng.choice(archive.namelist()))
    k = rng.randrange(len(members))
    name, content = members[k]
    match rng.randrange(8):
        case 0:
            members[k] = (rng.choice(("../../stray.npy", "/tmp/stray.npy", "", name.upper(), "..\\" + name)), content)
        case 1:
            del members[k]
        case 2:
            members.append((f"again/../{name}", mutate(rng, content, donor)))
        case _:
            members[k] = (name, mutate(rng, content, donor))
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w", rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, content in members:
            archive.writestr(zipfile.ZipInfo(name), content)
    return result.getvalue()
