"""Small files of huge content for every reader; as a program, the worker that reads them.

    python bombs.py FOLDER PART PARTS

It writes one JSON object a bomb: its size, how it ended, the peak of the memory and the time. The process has an address
space of 1 GiB in all. Every reader of `hostile_readers` has a bomb, and so have readers that the damaged files do not
reach: of FLAC, of photographs, of features, and a named pipe in a file's place.
"""

import gzip
import io
import json
import os
import resource
import struct
import sys
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import hostile_readers
import numpy as np
from hostile_readers import READERS

from duoln.errors import CheckpointError, DataError
from duoln.plugins.attentive_reader import corpus as questions
from duoln.plugins.las import audio, distributed
from duoln.plugins.las.features import features
from duoln.plugins.order_embeddings import data as images, flickr8k

SPACE = 1 << 30
MIB = 1 << 20
_ENOUGH = 1 << 30
"""Bytes that a bomb unpacks to."""


class Bomb(NamedTuple):
    """A small file with huge content, and its reader."""

    name: str
    """Of the reader in `READERS`, or its own."""
    make: Callable[[Path], Any]
    """Writes it to a path."""
    read: Callable[[Path], Any] | None = None
    file: str = "bomb"
    beside: dict[str, bytes] | None = None


def _gz(head: bytes, piece: bytes, size: int = _ENOUGH) -> bytes:
    """Gzip of a head and a repeated piece, up to so many bytes."""
    block = gzip.compress(piece * max(4 * MIB // len(piece), 1), 9, mtime=0)
    return gzip.compress(head, mtime=0) + block * max(size // (4 * MIB), 1)


def _deflated(head: bytes, size: int) -> bytes:
    """Raw deflate of a head and zeros."""
    packer = zlib.compressobj(9, wbits=-15)
    parts = [packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)]
    block = packer.compress(bytes(4 * MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"".join([*parts, block * (size // (4 * MIB)), packer.flush()])


def _zip(members: dict[str, tuple[bytes, int]], packing: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip of members that are a head and so many zeros each."""
    content, central = b"", b""
    for name, (head, zeros) in members.items():
        packed = _deflated(head, zeros)
        fields = struct.pack("<HHHHHIIIHH", 20, 0, packing, 0, 33, 0, len(packed), len(head) + zeros, len(name), 0)
        central += b"PK\1\2\x14\0" + fields + struct.pack("<HHHII", 0, 0, 0, 0, len(content)) + name.encode()
        content += b"PK\3\4" + fields + name.encode() + packed
    return content + central + b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(central), len(content), 0)


def _npy(dtype: str, *shape: int) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape})
    return content.getvalue()


def _npz(packing: int = zipfile.ZIP_DEFLATED, **arrays: tuple[Any, ...]) -> bytes:
    """An npz of zeros: each array's dtype and shape."""
    return _zip({f"{name}.npy": (_npy(dtype, *shape), int(np.dtype(dtype).itemsize * np.prod(shape)))
                 for name, (dtype, *shape) in arrays.items()}, packing)


def _tar(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for name, file in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(file)
            archive.addfile(info, io.BytesIO(file))
    return content.getvalue()


def _member(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf()


def _sparse(head: bytes, size: int) -> Callable[[Path], Any]:
    """A sparse file, which needs no space on the disk."""
    def make(path: Path) -> None:
        path.write_bytes(head)
        os.truncate(path, size)
    return make


def _of(content: Callable[[], bytes]) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content())


def _flac(samples: int) -> Callable[[Path], Any]:
    def make(path: Path) -> None:
        import soundfile

        with soundfile.SoundFile(path, "w", 16000, 1, "PCM_16", format="FLAC") as file:
            for _ in range(samples >> 20):
                file.write(np.zeros(1 << 20, np.int16))
    return make


def _chapter(path: Path) -> None:
    path.write_text(f"1-2-{'0' * 300} A B\n")


def _within(path: Path) -> Any:
    return questions.read(path, questions.Cut(None, None, "kept"), 1)


def _asking() -> bytes:
    """Questions whose passages ask a question a sentence, each of which repeats the passage before it."""
    passage = "@entity1 a b c d . " * 700
    text = f"u\n\n{passage}\n\n@placeholder a\n\n@entity1\n\n".encode()
    return gzip.compress(_tar({f"q/{part}/{k}.question": text for part in ("training", "validation") for k in range(2)}))


def _pax() -> bytes:
    """Remarks on members that are nothing but digits."""
    header = tarfile.TarInfo("a")
    header.type, header.size = tarfile.XHDTYPE, MIB
    return _gz(b"", header.tobuf() + b"1" * MIB, 64 * MIB)


def _text(path: Path, piece: bytes) -> None:
    path.write_bytes(_gz(b"", piece))


_DIGITS = {"offsets": ("i8", 2), "sample_rate": ("i4",), "word": ("<U4", 1), "take": ("i2", 1)}
_RUN = READERS["curves of a log"].beside
BOMBS = [
    Bomb("IDX", _sparse(bytes([0, 0, 8, 1, 255, 255, 255, 255]), 8 + 2**32 - 1)),
    Bomb("IDX, gzip", _of(lambda: _gz(bytes([0, 0, 8, 1, 0x40, 0, 0, 0]), bytes(4 * MIB)))),
    Bomb("packed images (npz)", _of(lambda: _npz(train=("u1", 10**7, 98), valid=("u1", 98, 98), test=("u1", 98, 98)))),
    Bomb("packed images (npz)", _of(lambda: _npz(12, train=("u1", 9, 98), valid=("u1", 98, 98), test=("u1", 98, 98)))),
    Bomb("images (CIFAR-10 archive)", _of(lambda: _gz(_member("cifar-10-batches-bin/data_batch_1.bin", 1 << 30), bytes(4 * MIB)))),
    Bomb("images (CIFAR-10, npz)", _of(lambda: _npz(train_images=("u1", 3 * 10**5, 3, 32, 32), train_labels=("u1", 3 * 10**5),
                                                     test_images=("u1", 9, 3, 32, 32), test_labels=("u1", 9)))),
    Bomb("images as text (amat)", _sparse(b"", 1 << 32)),
    Bomb("images as text (amat)", _of(lambda: b"1 " * 784 * 4000)),
    Bomb("prepared handwriting (npz)", _of(lambda: _npz(dx=("i2", 2 * 10**8), dy=("i2", 2 * 10**8), pen_up=("u1", 2 * 10**8),
                                                         offsets=("i8", 10**8), text=("<U1", 10**8), line_id=("<U1", 10**8)))),
    Bomb("strokes (XML)", _of(lambda: hostile_readers._BOMB)),
    Bomb("strokes (XML)", _sparse(b"<a>", 1 << 32)),
    Bomb("strokes (XML)", _of(lambda: b"<a><Stroke>" + b'<Point x="1" y="2"/>' * 100_000 + b"</Stroke></a>")),
    Bomb("transcript (ascii)", _sparse(b"CSR:\n", 1 << 32)),
    Bomb("transcript (ascii)", _of(lambda: b"CSR:\n" + b"a\n" * (MIB // 2 - 9))),
    Bomb("official lists of forms", _sparse(b"", 1 << 32), file="testset_v.txt", beside=READERS["official lists of forms"].beside),
    Bomb("features (npy)", _sparse(_npy("f4", 1 << 40, 4), 1 << 30)),
    Bomb("COCO (JSON)", _sparse(b"{", 1 << 32)),
    Bomb("COCO (JSON)", _of(lambda: b'{"images": [' + b"[]," * 10**6 + b"[]]}")),
    Bomb("Flickr8k (gzip)", _of(lambda: _gz(b"", b"".join(b"a%d#0\tab cd ef gh\n" % k for k in range(40_000)), 0))),
    Bomb("Flickr8k, a list (gzip)", _of(lambda: _gz(b"", b"".join(b"%d\n" % k for k in range(200_000)), 0))),
    Bomb("captions as features (npz)", _of(lambda: _npz(
        features=("f2", 2 * 10**7, 4), name=("<U1", 2 * 10**7), split=("<U1", 2 * 10**7), captions=("<U1", 2 * 10**7, 3)))),
    Bomb("books (text, gzip)", lambda p: _text(p, b" " * MIB + b"\n")),
    Bomb("books (text, gzip)", lambda p: _text(p, b"!")),
    Bomb("books (text, gzip)", _of(lambda: b"!" * MIB + b"\nA b.\n")),
    Bomb("characters (text, gzip)", lambda p: _text(p, b"\n")),
    Bomb("characters (text, gzip)", lambda p: _text(p, b"###\nA\n")),
    Bomb("characters (text, gzip)", lambda p: _text(p, b"!")),
    Bomb("a text (text, gzip)", _of(lambda: _gz("\U0001f600".encode(), b"a\r\n" * MIB, 28 * MIB))),
    Bomb("a text (text, gzip)", _sparse(b"a", 1 << 36)),
    Bomb("labelled sentences (gzip)", lambda p: _text(p, b"0 \n1 \n")),
    Bomb("labelled sentences (gzip)", lambda p: _text(p, b"a" * MIB)),
    Bomb("pairs (text, gzip)", _of(lambda: _gz(hostile_readers._SICK, b"1\ta\tb\t3\tN\n"))),
    Bomb("word vectors (binary)", _of(lambda: _gz(b"999999999 4096\n", bytes(MIB))), file="v.bin"),
    Bomb("question", _of(lambda: b"u\n\n" + b"@entity1 . " * 10**5 + b"\n\n@placeholder\n\n@entity1\n\n")),
    Bomb("questions (tar)", _sparse(_member("q/training/a.question", 1 << 33), 1 << 33)),
    Bomb("questions (tar, gzip)", _of(lambda: _gz(_member("q/training/a.question", 1 << 33), bytes(4 * MIB)))),
    Bomb("questions (tar, gzip)", _of(lambda: _gz(b"", _tar({"q/training/a.question": hostile_readers._QUESTION})[:1024], 0))),
    Bomb("questions within (tar, gzip)", _of(_asking), _within),
    Bomb("remarks (tar, gzip)", _of(_pax), _within),
    Bomb("sound (RIFF wav)", _sparse(b"RIFF\xff\xff\xff\xffWAVE" + hostile_readers._WAV[12:36] + b"data\0\0\0\x40", (1 << 30) + 44)),
    Bomb("sound (NIST SPHERE)", _sparse(hostile_readers._SPHERE.replace(b"sample_count -i 40\n", b"sample_count -i 999999999\n"), 1 << 31)),
    Bomb("sound (FLAC)", _flac(1 << 26), audio.read_audio),
    Bomb("sound (FLAC), its features", _flac(1 << 22), lambda p: features(audio.read_audio(p).samples, 16000, 40, "a")),
    Bomb("chapter (text)", _chapter, distributed.read_chapter, "1-2.trans.txt"),
    Bomb("spoken digits (npz)", _of(lambda: _npz(audio=("i2", 5 * 10**8), **_DIGITS))),
    Bomb("phones (TIMIT)", _sparse(b"", 1 << 32)),
    Bomb("phones (TIMIT)", _of(lambda: b"0 1 aa\n" * 140_000)),
    Bomb("photographs (npz)", _of(lambda: _npz(images=("u1", 1, 12_000, 12_000, 3), name=("<U1", 1))),
         lambda p: flickr8k.read_photographs(p, {"": {}})),
    Bomb("photographs (npz), their features", _of(lambda: _npz(images=("u1", 8, 128, 128, 3), name=("<U1", 8))),
         lambda p: images.extractor.extract(np.zeros((8, 128, 128, 3), np.uint8), [], 1024, 0)),
    Bomb("checkpoint (safetensors)", _sparse(struct.pack("<Q", 99_000_000) + b"{" + b" " * 64, 1 << 27)),
    Bomb("state dict of PyTorch (safetensors)", _sparse(struct.pack("<Q", 99_000_000) + b"{" + b" " * 64, 1 << 27)),
    Bomb("checkpoint (safetensors)", _sparse(
        struct.pack("<Q", 256) + json.dumps({"a": {"dtype": "F32", "shape": [1 << 30], "data_offsets": [0, 1 << 32]},
                                             "__metadata__": {"duoln": '{"format": 1, "update": 1}'}}).encode().ljust(256),
        (1 << 32) + 264)),
    Bomb("config (JSON)", _sparse(b"{", 1 << 32)),
    Bomb("config (JSON)", _of(lambda: b'{"a": [' + b"[]," * 300_000 + b"[]]}")),
    Bomb("log (JSONL)", _sparse(b'{"event": "', 1 << 32), file="log.jsonl"),
    Bomb("curves of a log", _sparse(b"", 1 << 32), file="log.jsonl", beside=_RUN),
    Bomb("curves of a config", _sparse(b"{", 1 << 32), file="config.json", beside=READERS["curves of a config"].beside),
    Bomb("a model's config", _of(lambda: READERS["a model's config"].files[0].replace(b'"hidden": 4', b'"hidden": 40000')),
         file="config.json", beside=READERS["a model's config"].beside),
    Bomb("a model's checkpoint", _sparse(struct.pack("<Q", 99_000_000), 1 << 27), file=READERS["a model's checkpoint"].name,
         beside=READERS["a model's checkpoint"].beside),
    Bomb("a run resumed", _sparse(struct.pack("<Q", 99_000_000), 1 << 27)),
    Bomb("record (JSON)", _sparse(b"{", 1 << 32)),
    Bomb("record (JSON)", _of(lambda: b'{"a": [' + b"0," * 4_000_000 + b"0]}")),
    Bomb("timings (JSONL)", _sparse(b"", 1 << 32)),
    *(Bomb(name, os.mkfifo, file=reader.name, beside=reader.beside) for name, reader in READERS.items()
      if name not in ("images (CIFAR-10 binary)", "question")),  # whose readers are given bytes
]


def drive(bomb: Bomb, folder: Path) -> dict[str, Any]:
    """The outcome of a bomb."""
    folder.mkdir()
    name = READERS[bomb.name].name if bomb.read is None else bomb.file
    path = folder / name
    for place, content in (bomb.beside or {}).items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    bomb.make(path)
    on_disk = path.stat().st_blocks * 512
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    started = time.process_time()
    try:
        (bomb.read or READERS[bomb.name].read)(path)
        outcome = "read"
    except (DataError, CheckpointError) as error:
        outcome = "refused" if folder.name in str(error) else "not named"
        what = str(error)[:300]
    except BaseException as error:
        outcome, what = "failed", f"{type(error).__name__}: {error}"[:300]
    else:
        what = ""
    seconds = time.process_time() - started
    peak = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    kind = "a named pipe" if bomb.make is os.mkfifo else ""
    path.unlink()
    return {"reader": bomb.name, "kind": kind, "on_disk": on_disk, "peak_mib": peak >> 10, "seconds": round(seconds, 2),
            "outcome": outcome, "what": what}


def main() -> None:
    folder, part, parts = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_AS, (SPACE, SPACE))
    for k, bomb in list(enumerate(BOMBS))[part::parts]:
        print(json.dumps(drive(bomb, folder / f"bomb{k}x")), flush=True)


if __name__ == "__main__":
    main()
