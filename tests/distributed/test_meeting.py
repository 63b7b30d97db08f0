"""Only a process with the run's token meets the ranks. A stranger learns nothing and cannot stop the run."""

import contextlib
import socket
import threading
import time
from dataclasses import replace

import pytest
from meetings import TOKEN, close, free_port, in_threads, meet_all, rank_infos

from duoln.distributed import meeting as meeting_module
from duoln.distributed.meeting import Channel, _introduce, meet
from duoln.distributed.rank_info import RankInfo
from duoln.errors import RankError, UsageError

FOREVER = time.monotonic() + 3600


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_that_know_the_token_meet_and_exchange_values(size):
    met = meet_all(rank_infos(size))
    assert [(m.rank, m.size, m.host) for m in met] == [(k, size, "127.0.0.1") for k in range(size)]
    for round_name in ("a", "b"):
        values = in_threads(*(lambda m=m, name=round_name: m.gather({"of": m.rank, "in": name}) for m in met))
        assert values == [[{"of": k, "in": round_name} for k in range(size)]] * size
    assert len({m.secret("a") for m in met}) == 1 and met[0].secret("a") != met[0].secret("b")
    close(met)


def silent(connection):
    """Sends nothing."""


def garbage(connection):
    connection.sendall(b"GET / HTTP/1.1\r\nHost: there\r\n\r\n" * 20)


def wrong_token(connection):
    with pytest.raises(OSError):
        _introduce(connection, b"another secret of some length", FOREVER)


def sent_back(connection):
    """Sends back what it received."""
    connection.sendall(connection.recv(32) * 3)


def cut_off(connection):
    connection.sendall(b"x" * 7)
    connection.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("stranger", [silent, garbage, wrong_token, sent_back, cut_off])
def test_a_stranger_who_comes_first_is_refused_and_the_ranks_meet(stranger, monkeypatch):
    monkeypatch.setattr(meeting_module, "PROOF_SECONDS", 0.5)
    where, told = rank_infos(2), []
    with socket.create_connection((where[0].host, where[0].port)) as connection:
        heard = threading.Event()

        def tell(sentence):
            told.append(sentence)
            heard.set()

        first = threading.Thread(target=lambda: met.extend(meet_all(where[:1], tell)), daemon=True)
        met = []
        first.start()
        stranger(connection)
        assert heard.wait(30) and told[0].startswith("ranks: refused a connection from 127.0.0.1:")
        connection.settimeout(30)
        received = b""
        try:
            while part := connection.recv(4096):
                received += part
        except ConnectionError:
            pass  # closed before all that the stranger sent was read
        assert len(received) <= 32  # a random number, and nothing else
        [second] = meet_all(where[1:])
        first.join(30)
        assert (met[0].rank, second.rank) == (0, 1)
        close([*met, second])


def test_strangers_who_say_nothing_only_delay_the_ranks(monkeypatch):
    monkeypatch.setattr(meeting_module, "PROOF_SECONDS", 0.1)
    where = rank_infos(2)
    with contextlib.ExitStack() as strangers:
        for _ in range(8):
            strangers.enter_context(socket.create_connection((where[0].host, where[0].port)))
        met = meet_all(where)
    assert [m.rank for m in met] == [0, 1]
    close(met)


def test_a_rank_with_another_token_is_told_and_rank_0_tells_who_is_missing():
    first, second = rank_infos(2)
    told = []
    results = in_threads(lambda: meet(first, "mlx", told.append, 1.0),
                         lambda: meet(replace(second, token=b"another secret of some length"), "mlx", told.append, 1.0))
    assert all(isinstance(error, RankError) for error in results)
    assert "did not meet rank 1; start every rank with the same token" in str(results[0])
    assert "is not rank 0 of this run, or has another token" in str(results[1])
    assert len(told) == 1 and "it does not know this run's token" in told[0]


def test_who_listens_in_the_place_of_rank_0_learns_nothing():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        info = RankInfo(1, 2, "127.0.0.1", listener.getsockname()[1], TOKEN)
        heard = []

        def pretend():
            connection, _ = listener.accept()
            with connection:
                connection.sendall(bytes(32))
                heard.append(connection.recv(4096))
                connection.sendall(heard[0][32:])  # its own proof, sent back
                heard.append(connection.recv(4096))

        [error, _] = in_threads(lambda: meet(info, "mlx", print, 5.0), pretend)
    assert isinstance(error, RankError) and "it does not know this run's token" in str(error)
    assert len(heard[0]) == 64 and heard[1] == b"" and TOKEN not in heard[0]


@pytest.mark.parametrize(("change", "library", "message"), [
    ({"size": 3}, "mlx", "expected 2 ranks, as rank 0 was told; found 3 on rank 1"),
    ({"rank": 0}, "mlx", None),
    ({}, "cupy", "expected one backend on all ranks, found mlx on rank 0 and cupy on rank 1")])
def test_ranks_that_were_told_different_things_say_so_on_both_sides(change, library, message):
    first, second = rank_infos(2)
    if message is None:  # a second rank 0 finds the place taken
        first = socket.socket(fileno=first.listener)
        with pytest.raises(RankError, match="rank 0 cannot listen at 127"):
            meet(replace(second, **change), library, print, 5.0)
        first.close()
        return
    results = in_threads(lambda: meet(first, "mlx", print, 5.0),
                         lambda: meet(replace(second, **change), library, print, 5.0))
    assert all(isinstance(error, UsageError) and message in str(error) for error in results)


def test_two_processes_of_one_number_are_told():
    first, second, _ = rank_infos(3)
    results = meet_all([first, second, second], seconds=5.0)
    assert isinstance(results[0], UsageError) and "found two that are rank 1" in str(results[0])
    close(results)


def test_nobody_there_is_an_error_within_the_time_limit():
    with pytest.raises(RankError, match="rank 1 cannot reach rank 0 at 127"):
        meet(RankInfo(1, 2, "127.0.0.1", free_port(), TOKEN), "mlx", print, 0.2)


def test_a_long_wait_is_told_once(monkeypatch):
    monkeypatch.setattr(meeting_module, "SILENT_SECONDS", 0.0)
    told = []
    with pytest.raises(RankError):
        meet(RankInfo(1, 2, "127.0.0.1", free_port(), TOKEN), "mlx", told.append, 0.2)
    with pytest.raises(RankError):
        meet(rank_infos(3)[0], "mlx", told.append, 0.2)
    assert len(told) == 2 and "rank 1 cannot reach rank 0 at 127" in told[0] and "which is 127.0.0.1 here, for rank 1, 2, for" in told[1]


def test_a_rank_that_goes_before_training_is_named():
    met = meet_all(rank_infos(3))
    met[2].close()
    results = in_threads(lambda: met[0].gather(0), lambda: met[1].gather(1))
    assert "rank 0 lost rank 2 before training" in str(results[0])
    assert "rank 1 lost rank 0 before training" in str(results[1])
    close(met)


@pytest.mark.parametrize(("sent", "message"), [(b"\xff" * 40, "a message of 4294967295 bytes"), (b"\0\0\0\2{]", "no JSON")])
def test_what_is_no_message_is_refused(sent, message):
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as member:
        member.sendall(sent)
        channel = Channel(listener.accept()[0], FOREVER)
        with pytest.raises(OSError, match=message):
            channel.receive()
        channel.close()
