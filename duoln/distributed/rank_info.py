"""The rank of this process, the number of ranks and their meeting point, from the variables of a launcher."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from duoln.data.bounded import open_regular
from duoln.errors import DataError, UsageError

RANK, COUNT, MEETING = "DUOLN_RANK", "DUOLN_RANK_COUNT", "DUOLN_RANK_MEETING"
"""The variables with a process's rank, the number of ranks, and HOST:PORT where rank 0 listens."""
TOKEN, TOKEN_FILE = "DUOLN_RANK_TOKEN", "DUOLN_RANK_TOKEN_FILE"
"""The variables with the secret of the run, or the file that holds it."""
LISTENER = "DUOLN_RANK_LISTENER"
"""Set by `duoln run --ranks N` for rank 0: the descriptor of a socket that already listens."""

_SHORTEST_TOKEN = 16
_LONGEST_TOKEN = 4096
_HOST = re.compile(r"(?!.{254})[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_MOST_PORT = 65_535
_SLURM_PORTS = range(20_000, 30_000)


class _Names(NamedTuple):
    """The variables in which a launcher sets the rank, the number of ranks, and the rank on the machine."""

    rank: str
    size: str
    local: str


LAUNCHERS = {
    "duoln": _Names(RANK, COUNT, "DUOLN_RANK_LOCAL"),
    "torchrun": _Names("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "openmpi": _Names("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "slurm": _Names("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}
"""Our variables come first, because a user who sets them wants them in any surroundings."""


@dataclass(frozen=True)
class RankInfo:
    """The rank of this process, from 0, the number of ranks, the address at which rank 0 listens, and the secret."""

    rank: int
    size: int
    host: str
    port: int
    token: bytes = field(repr=False)
    local_rank: int | None = None
    """The number of this process on its machine, if that is known."""
    listener: int | None = None
    """The descriptor of a socket that already listens at the meeting point."""

    @property
    def meeting(self) -> str:
        """HOST:PORT of the meeting point."""
        return f"{self.host}:{self.port}"


def find_rank(launcher: str, environment: MutableMapping[str, str] = os.environ) -> RankInfo | None:
    """The rank of this process; None for a single process. The token is removed from the environment, so that child
    processes do not get it.

    Args:
        launcher: a key of `LAUNCHERS`, or "auto" for the launcher whose variables are set.
        environment: the variables.

    Raises:
        UsageError: variables that are missing, are no numbers, or contradict each other.
    """
    names = LAUNCHERS[_detect_launcher(environment) if launcher == "auto" else launcher]
    rank, size = _number(environment, names.rank), _number(environment, names.size)
    if size < 1:
        raise UsageError(f"[ranks] expected {names.size} of at least 1, found 0")
    if not rank < size:
        raise UsageError(f"[ranks] expected {names.rank} between 0 and {size - 1}, as {names.size} says, found {rank}")
    if size == 1:
        return None
    local = _number(environment, names.local) if names.local in environment else None
    host, port = _meeting_point(names, environment)
    listener = _number(environment, LISTENER) if LISTENER in environment else None
    return RankInfo(rank, size, host, port, _take_token(environment), local, listener)


def choose_gpu(local_rank: int, environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process see only the GPU of its number on its machine. Call this before a library looks for GPUs.

    Raises UsageError for more processes on this machine than GPUs that they may use.
    """
    variable = "CUDA_VISIBLE_DEVICES"
    visible = environment.get(variable, "").split(",")
    if variable not in environment:
        environment[variable] = str(local_rank)
    elif len(visible) > 1:  # a single visible GPU was chosen by the launcher
        if local_rank >= len(visible):
            raise UsageError(f"[ranks] expected a GPU for each rank of this machine, found {variable}="
                             f"{environment[variable]} for rank {local_rank} of it")
        environment[variable] = visible[local_rank]


def _detect_launcher(environment: Mapping[str, str]) -> str:
    present = [name for name, names in LAUNCHERS.items() if names.rank in environment or names.size in environment]
    if not present:
        raise UsageError("[ranks] --ranks auto: expected the variables of a launcher, found none of "
                         f"{', '.join(names.rank for names in LAUNCHERS.values())}")
    if present[0] == "duoln":
        return "duoln"
    claims = {name: (_number(environment, LAUNCHERS[name].rank), _number(environment, LAUNCHERS[name].size))
              for name in present}
    if len(set(claims.values())) > 1:
        told = "; ".join(f"{name}: rank {rank} of {count}" for name, (rank, count) in claims.items())
        raise UsageError(f"[ranks] --ranks auto: expected launchers that agree, found {told}; name the one that "
                         f"counts, as --ranks {present[0]}")
    return present[0]


def _number(environment: Mapping[str, str], name: str, most: int = 2**31 - 1) -> int:
    value = environment.get(name, "")
    if not (value.isascii() and value.isdecimal()):
        raise UsageError(f"[ranks] expected a number in {name}, found {f'{value!r:.40}' if value else 'nothing'}")
    if int(value) > most:
        raise UsageError(f"[ranks] expected a number of at most {most} in {name}, found {value}")
    return int(value)


def _meeting_point(names: _Names, environment: Mapping[str, str]) -> tuple[str, int]:
    """The address at which rank 0 listens: our variable's, torchrun's, or Slurm's first node."""
    if MEETING in environment:
        host, colon, port = environment[MEETING].rpartition(":")
        if not colon:
            raise UsageError(f"[ranks] expected {MEETING} as HOST:PORT, found {environment[MEETING]!r:.80}")
        return _host(host, MEETING), _port({MEETING: port}, MEETING)
    if "MASTER_ADDR" in environment or "MASTER_PORT" in environment:
        # torchrun's own store uses MASTER_PORT during the whole run.
        taken = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        port_number = _port(environment, "MASTER_PORT", taken) + taken
        if not environment.get("MASTER_ADDR"):
            raise UsageError("[ranks] expected MASTER_ADDR beside MASTER_PORT, found nothing")
        return _host(environment["MASTER_ADDR"], "MASTER_ADDR"), port_number
    if names == LAUNCHERS["slurm"]:
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
        if first := _first_node(nodes):
            job = _number(environment, "SLURM_JOB_ID")
            return _host(first, "Slurm's list of nodes"), _SLURM_PORTS[job % len(_SLURM_PORTS)]
    raise UsageError(f"[ranks] expected {MEETING}=HOST:PORT on every rank, an address of rank 0's machine and a free "
                     "port there; found nothing")


def _host(host: str, source: str) -> str:
    """A host's name or IPv4 address. Others are refused here: their ranks would try to find it for minutes."""
    if not _HOST.fullmatch(host):
        raise UsageError(f"[ranks] expected one host name or IPv4 address in {source}, found {host!r:.80}")
    return host


def _port(environment: Mapping[str, str], name: str, above: int = 0) -> int:
    """The port that a variable names; `above` more ports are used."""
    number = _number(environment, name, _MOST_PORT - above)
    if not number:
        raise UsageError(f"[ranks] expected a port of at least 1 in {name}, found 0")
    return number


def _first_node(nodes: str) -> str:
    """The first host of Slurm's short form: "gpu003" of "gpu[003-007,9],cpu1"."""
    match = re.match(r"(?:[^,\[\]]|\[[^\]]*\])*", nodes)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", match.group()) if match else ""


def _take_token(environment: MutableMapping[str, str]) -> bytes:
    token = os.fsencode(environment.pop(TOKEN, "")).strip()
    if not token and (path := environment.get(TOKEN_FILE)) is not None:
        try:
            with open_regular(Path(path)) as file:
                mode, token = os.fstat(file.fileno()).st_mode, file.read(_LONGEST_TOKEN).strip()
        except (OSError, DataError) as error:
            raise UsageError(f"[ranks] {TOKEN_FILE}: {error}") from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"[ranks] expected {path} readable by you alone, found mode {stat.S_IMODE(mode):04o}; "
                             f"chmod 600 {path}")
    if len(token) < _SHORTEST_TOKEN:
        raise UsageError(f"[ranks] expected the same secret of at least {_SHORTEST_TOKEN} characters on every rank, in "
                         f"{TOKEN} or in a file named by {TOKEN_FILE}; found {len(token)} characters. "
                         f"`openssl rand -hex 32` makes one")
    return token
