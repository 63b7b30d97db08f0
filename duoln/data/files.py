"""Finds data files: in the user's folder, then in the cache, then by a download.

`DUOLN_DATA` is a folder of the user (or several, separated as in PATH); `DUOLN_CACHE` replaces the
platform's cache folder; `DUOLN_OFFLINE=1` opens no socket.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from duoln.data.bounded import opened
from duoln.errors import CheckpointError, DataError, DataMissingError
from duoln.system.filesystem import write_atomically
from duoln.system.paths import cache_folder

_TIMEOUT = 10.0
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Resource:
    """One file that a task needs.

    Attributes:
        path: its place below DUOLN_DATA and in the cache, such as "mnist/t10k-labels-idx1-ubyte.gz".
        sha256: of its bytes.
        size: in bytes; a download stops one byte past it.
        urls: mirrors, tried in order.
        unpacked_sha256: of the content of a gzipped file, which may lie there unpacked, without .gz; "" for no such
            file.
        also: other places below these folders, such as those where another library puts the file.
    """

    path: str
    sha256: str
    size: int
    urls: tuple[str, ...] = ()
    unpacked_sha256: str = ""
    also: tuple[str, ...] = ()


def data_folders() -> list[Path]:
    """The folders of DUOLN_DATA."""
    return [Path(os.path.expanduser(p)) for p in os.environ.get("DUOLN_DATA", "").split(os.pathsep) if p]


def absent_folders() -> list[str]:
    """A line for each part of DUOLN_DATA that is no folder."""
    return [f"DUOLN_DATA: {folder} {'is no folder' if os.path.exists(folder) else 'does not exist'}"
            for folder in data_folders() if not os.path.isdir(folder)]


def search_folders(root: Path | None = None) -> list[Path]:
    """The folders in which data are looked for: `root`, those of DUOLN_DATA, the cache."""
    return [*([] if root is None else [root]), *data_folders(), cache_folder()]


def packed_or_not(path: Path) -> Path | None:
    """A path, or the same without .gz, where something of this name is; None where nothing is.

    Raises:
        DataError: it is a link to nothing, or its folder cannot be searched.
    """
    for option in (path, path.with_suffix("")) if path.suffix == ".gz" else (path,):
        try:
            option.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise DataError(f"{option}: cannot be read: {error.strerror or error}") from error
        if not option.exists():
            raise DataError(f"{option}: expected a file or folder, found a link to nothing")
        return option
    return None


def write_whole(path: Path, content: bytes) -> Path:
    """Write a file, and its folder if that is not there; returns the path.

    Raises:
        DataError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except CheckpointError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error
    return path


def visible(paths: Iterable[Path]) -> list[Path]:
    """Paths in order, without names that begin with a point: macOS puts a file `._NAME` beside each NAME."""
    return sorted(path for path in paths if not path.name.startswith("."))


def on_disk(resource: Resource, root: Path | None = None) -> Path | None:
    """The path of a resource's file, packed or unpacked, in the first folder that has it; None where none has."""
    places = [folder / place for folder in search_folders(root) for place in (resource.path, *resource.also)]
    return next((path for path in map(packed_or_not, places) if path is not None), None)


def find(resource: Resource) -> Path:
    """The path of a resource's file, which is downloaded if it is in no folder.

    Raises:
        DataMissingError: the file is in no folder and cannot be downloaded; the message says what was tried and where
            to put the file by hand.
        DataError: a file of that name has another sha256, or cannot be read.
    """
    path = on_disk(resource)
    if path is None:
        return _download(resource, cache_folder() / resource.path)
    _verify(path, resource)
    return path


def _verify(path: Path, resource: Resource) -> None:
    unpacked = resource.path.endswith(".gz") and path.suffix != ".gz"
    expected = resource.unpacked_sha256 if unpacked else resource.sha256
    digest = hashlib.sha256()
    with opened(path, "file") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        size = "" if unpacked else f", expected {resource.size}"
        raise DataError(f"{path}: expected sha256 {expected}, found {digest.hexdigest()} ({path.stat().st_size} "
                        f"bytes{size}); the file is damaged or another one: remove or replace it")


def _download(resource: Resource, target: Path) -> Path:
    by_hand = f"put the file (sha256 {resource.sha256}) at {target} or below DUOLN_DATA as {resource.path}"
    if resource.urls:
        by_hand += f"; it is offered at {resource.urls[0]}"
    if os.environ.get("DUOLN_OFFLINE") == "1":
        raise DataMissingError(f"{resource.path}: not found, and DUOLN_OFFLINE=1 forbids a download; {by_hand}")
    try:
        import pooch
    except ImportError as error:
        raise DataMissingError(f"{resource.path}: not found, and a download needs pooch ({error}): pip install pooch; "
                               f"{by_hand}") from error

    failures = []
    for url in resource.urls:
        try:
            with _quiet(pooch.get_logger()):
                pooch.retrieve(url, known_hash=f"sha256:{resource.sha256}", fname=target.name, path=target.parent,
                               downloader=_Capped(resource.size))
            return target
        except Exception as error:
            failures.append(f"{url}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
    raise DataMissingError(f"{resource.path}: not found, and no mirror gave it "
                           f"({'; '.join(failures) or 'none is known'}); {by_hand}")


@contextlib.contextmanager
def _quiet(logger: logging.Logger) -> Iterator[None]:
    """In the block the logger prints nothing, because duoln's own message reports a failure."""
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


class _Capped:
    """A downloader for pooch that stops one byte past the size it expects."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, url: str, output_file: str | IO[bytes], pooch: Any) -> None:
        from urllib.request import Request, urlopen

        got = 0
        if isinstance(output_file, str | os.PathLike):
            os.unlink(output_file)  # pooch has made it for its user alone; a new one follows the umask
        with (urlopen(Request(url, headers={"User-Agent": "duoln"}), timeout=_TIMEOUT) as answer,
              open(output_file, "wb") if isinstance(output_file, str | os.PathLike) else output_file as out):
            while chunk := answer.read(min(_CHUNK, self.size + 1 - got)):
                got += len(chunk)
                if got > self.size:
                    raise DataError(f"{url}: expected {self.size} bytes, found more")
                out.write(chunk)
