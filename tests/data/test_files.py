"""Finding data: in the user's folders, in the cache, then on mirrors, whose files are checked."""

import gzip
import hashlib
import http.server
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from duoln.data.files import Resource, data_folders, find
from duoln.errors import DataError, DataMissingError
from duoln.system.paths import cache_folder
from duoln.testing import check_error

CONTENT = b"what was asked for" * 100
OTHER = b"something else"
DIGEST, OTHER_DIGEST = (hashlib.sha256(c).hexdigest() for c in (CONTENT, OTHER))
NAME = "task/file.bin"


def _resource(*urls):
    return Resource(NAME, DIGEST, len(CONTENT), urls)


def _put(folder, content=CONTENT):
    path = folder / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DUOLN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_socket(monkeypatch):
    opened = []

    def refuse(*args, **kwargs):
        opened.append(args)
        raise AssertionError("a socket was opened")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    yield
    assert opened == []


@pytest.fixture
def online(monkeypatch):
    monkeypatch.delenv("DUOLN_OFFLINE")
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        kind = self.path.strip("/")
        if kind == "missing":
            self.send_error(404)
            return
        self.send_response(200)
        body = {"good": CONTENT, "other": OTHER, "same-size": b"x" * len(CONTENT), "short": CONTENT[:-1],
                "longer": CONTENT + b"x", "broken": CONTENT[:50]}.get(kind, b"")
        if kind == "broken":
            self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        try:
            self.wfile.write(body)
            while kind == "endless" and self.server.sent < 128 << 20:
                self.wfile.write(bytes(1 << 16))
                self.server.sent += 1 << 16
        except ConnectionError:
            pass

    def log_message(self, *args):
        pass


@pytest.fixture
def server(online):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as httpd:
        httpd.asked, httpd.sent = [], 0
        httpd.url = f"http://127.0.0.1:{httpd.server_port}/"
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield httpd
        httpd.shutdown()
        thread.join()


# Folders ----------------------------------------------------------------------------------------------

def test_folders_of_the_user_are_parted_as_in_path(monkeypatch):
    monkeypatch.setenv("DUOLN_DATA", os.pathsep.join(["/a", "", "~/b", "~nobody-of-that-name/c"]))
    assert data_folders() == [Path("/a"), Path.home() / "b", Path("~nobody-of-that-name/c")]
    monkeypatch.delenv("DUOLN_DATA")
    assert data_folders() == []


def test_cache_folder(monkeypatch):
    monkeypatch.setenv("DUOLN_CACHE", "~/mine")
    assert cache_folder() == Path.home() / "mine"
    monkeypatch.delenv("DUOLN_CACHE")
    assert cache_folder().name == "duoln"


def test_order_is_the_users_folders_then_the_cache(tmp_path, cache, monkeypatch, no_socket):
    folders = [tmp_path / "first", tmp_path / "second", cache]
    monkeypatch.setenv("DUOLN_DATA", os.pathsep.join(map(str, folders[:2])))
    places = [_put(folder) for folder in folders]
    for place in places:
        assert find(_resource("http://127.0.0.1:9/x")) == place
        place.unlink()
    assert len(set(places)) == 3
    with pytest.raises(DataMissingError):
        find(_resource("http://127.0.0.1:9/x"))


def test_what_is_found_is_not_downloaded_even_online(cache, online, no_socket):
    place = _put(cache)
    assert find(_resource("http://127.0.0.1:9/x")) == place


@pytest.mark.parametrize("where", ["data", "cache"])
def test_another_file_of_that_name_is_an_error(tmp_path, cache, monkeypatch, no_socket, where):
    monkeypatch.setenv("DUOLN_DATA", str(tmp_path / "data"))
    _put(cache)
    place = _put(tmp_path / where, OTHER)
    check_error(DataError, lambda: find(_resource()), str(place), DIGEST, OTHER_DIGEST, f"{len(OTHER)} bytes",
                f"expected {len(CONTENT)}")
    with pytest.raises(DataError) as caught:
        find(_resource())
    assert not isinstance(caught.value, DataMissingError)  # tasks fall back to made data for that one only
    assert place.read_bytes() == OTHER


def test_what_is_no_file_in_its_place_is_named_and_not_passed_over(tmp_path, cache, monkeypatch, no_socket):
    monkeypatch.setenv("DUOLN_DATA", str(tmp_path / "data"))
    place = tmp_path / "data" / NAME
    place.mkdir(parents=True)
    _put(cache)
    check_error(DataError, lambda: find(_resource()), str(place), "directory")
    place.rmdir()
    place.symlink_to("nowhere")
    check_error(DataError, lambda: find(_resource()), str(place), "link to nothing")


@pytest.mark.parametrize("place", ["mnist/a.gz", "mnist/a", "MNIST/raw/a.gz", "MNIST/raw/a"])
def test_a_file_lies_packed_or_unpacked_and_where_another_library_puts_it(tmp_path, cache, monkeypatch, no_socket, place):
    monkeypatch.setenv("DUOLN_DATA", str(tmp_path))
    packed = gzip.compress(CONTENT, mtime=0)
    resource = Resource("mnist/a.gz", hashlib.sha256(packed).hexdigest(), len(packed), (), DIGEST, ("MNIST/raw/a.gz",))
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_bytes(packed if place.endswith(".gz") else CONTENT)
    assert find(resource) == tmp_path / place
    (tmp_path / place).write_bytes(OTHER)
    check_error(DataError, lambda: find(resource), str(tmp_path / place), "sha256", OTHER_DIGEST)


# No network -------------------------------------------------------------------------------------------

@pytest.mark.parametrize("urls", [(), ("http://127.0.0.1:9/x", "http://127.0.0.1:9/y")])
def test_offline_opens_no_socket_and_says_what_to_fetch(tmp_path, cache, monkeypatch, no_socket, urls):
    monkeypatch.setenv("DUOLN_DATA", str(tmp_path))
    check_error(DataMissingError, lambda: find(_resource(*urls)), NAME, "DUOLN_OFFLINE=1", DIGEST, str(cache / NAME),
                "DUOLN_DATA", *urls[:1])
    assert not cache.exists()


def test_online_without_mirrors(cache, online, no_socket):
    check_error(DataMissingError, lambda: find(_resource()), NAME, DIGEST, "none is known", str(cache / NAME))


def test_no_network_names_every_mirror(cache, online):
    urls = ("http://127.0.0.1:9/x", "http://127.0.0.1:9/y", "no-such-scheme://host/z")
    check_error(DataMissingError, lambda: find(_resource(*urls)), NAME, DIGEST, "refused", "unknown url type", *urls)
    assert _files(cache) == []


def test_without_pooch_nothing_is_downloaded_and_the_line_that_installs_it_is_said(cache, online, no_socket, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    check_error(DataMissingError, lambda: find(_resource("http://127.0.0.1:9/x")), NAME, "pip install pooch", DIGEST,
                str(cache / NAME))


def test_only_1_means_offline(cache, server, monkeypatch):
    monkeypatch.setenv("DUOLN_OFFLINE", "0")
    assert find(_resource(server.url + "good")).read_bytes() == CONTENT


# Mirrors ----------------------------------------------------------------------------------------------

def test_download_is_kept_in_the_cache_and_used_again(cache, server, capfd, monkeypatch):
    resource = _resource(server.url + "good")
    assert find(resource) == cache / NAME
    assert find(resource).read_bytes() == CONTENT
    assert _files(cache) == [NAME] and server.asked == ["/good"]
    assert capfd.readouterr() == ("", "")


def test_a_download_follows_the_umask(cache, server):
    before = os.umask(0o022)
    try:
        path = find(_resource(server.url + "good"))
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o644


def test_mirrors_are_tried_in_order(cache, server):
    find(_resource(*(server.url + kind for kind in ("missing", "other", "good", "never"))))
    assert server.asked == ["/missing", "/other", "/good"]
    assert _files(cache) == [NAME] and (cache / NAME).read_bytes() == CONTENT


@pytest.mark.parametrize(("kind", "reason"), [
    ("missing", "404"), ("other", "hash"), ("same-size", "hash"), ("short", "hash"), ("broken", ""),
    ("longer", f"expected {len(CONTENT)} bytes, found more"),
    ("endless", f"expected {len(CONTENT)} bytes, found more")])
def test_mirror_that_gives_anything_else_is_refused(cache, server, capfd, kind, reason):
    check_error(DataMissingError, lambda: find(_resource(server.url + kind)), server.url + kind, reason, DIGEST)
    assert server.asked == [f"/{kind}"]
    assert _files(cache) == []
    assert server.sent < 64 << 20  # what the sockets hold, and no more
    assert capfd.readouterr() == ("", "")


def test_download_that_is_interrupted_leaves_nothing(cache, online, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("urllib.request.urlopen", interrupt)
    with pytest.raises(KeyboardInterrupt):
        find(_resource("http://127.0.0.1:9/x", "http://127.0.0.1:9/y"))
    assert _files(cache) == []


def test_cache_that_cannot_be_made_is_named(tmp_path, server, monkeypatch):
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("DUOLN_CACHE", str(tmp_path / "file"))
    check_error(DataMissingError, lambda: find(_resource(server.url + "good")), str(tmp_path / "file"), "Error")


def test_looking_in_folders_does_not_load_pooch(cache):
    place = _put(cache)
    code = ("import sys; from duoln.data.files import Resource, find; "
            f"print(find(Resource({NAME!r}, {DIGEST!r}, 1)), 'pooch' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(place), "False"]
