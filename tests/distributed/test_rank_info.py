"""The rank of a process, from the variables of its launcher."""


import pytest

from duoln.distributed.rank_info import choose_gpu, find_rank
from duoln.errors import UsageError

SECRET = {"DUOLN_RANK_TOKEN": "0123456789abcdef"}
MEETING = {"DUOLN_RANK_MEETING": "node1:29500"}
OURS = {"DUOLN_RANK": "1", "DUOLN_RANK_COUNT": "2", **MEETING, **SECRET}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "29400", **SECRET}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0", **MEETING, **SECRET}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "4123456",
         "SLURM_JOB_NODELIST": "gpu[003-004,7],cpu1", **SECRET}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(("launcher", "environment", "expected"), [
    ("duoln", OURS, (1, 2, "node1:29500", None)),
    ("torchrun", TORCHRUN, (3, 4, "10.0.0.7:29400", 1)),
    ("torchrun", {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}, (3, 4, "10.0.0.7:29401", 1)),
    ("openmpi", OPENMPI, (2, 4, "node1:29500", 0)),
    ("slurm", SLURM, (5, 8, "gpu003:23456", 1)),
    ("slurm", {**SLURM, "SLURM_STEP_NODELIST": "gpu7"}, (5, 8, "gpu7:23456", 1)),
    ("slurm", {**SLURM, **MEETING}, (5, 8, "node1:29500", 1)),
    ("slurm", {**SLURM, "MASTER_ADDR": "a", "MASTER_PORT": "5000"}, (5, 8, "a:5000", 1))])
def test_a_launcher_says_who_we_are(launcher, environment, expected, named):
    environment = dict(environment)
    info = find_rank(launcher if named else "auto", environment)
    assert (info.rank, info.size, info.meeting, info.local_rank) == expected
    assert info.token == b"0123456789abcdef" and info.listener is None
    assert "DUOLN_RANK_TOKEN" not in environment  # so that no child process has it
    assert "0123456789abcdef" not in repr(info)


@pytest.mark.parametrize(("nodes", "first"), [
    ("node1", "node1"), ("node1,node2", "node1"), ("gpu[003-007,9],cpu1", "gpu003"), ("a-[1,3]", "a-1"), ("r[0-1]n[4-5]x", "r0n4x")])
def test_the_first_node_of_a_slurm_list(nodes, first):
    assert find_rank("slurm", {**SLURM, "SLURM_JOB_NODELIST": nodes}).host == first


def test_our_own_variables_come_before_those_of_the_surroundings():
    assert find_rank("auto", {**TORCHRUN, **SLURM, **OURS}).rank == 1


@pytest.mark.parametrize("environment", [
    {"RANK": "0", "WORLD_SIZE": "1"}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, {"DUOLN_RANK": "0", "DUOLN_RANK_COUNT": "1"}])
def test_one_process_is_alone_and_needs_nothing(environment):
    assert find_rank("auto", environment) is None


def without(environment, *names):
    return {name: value for name, value in environment.items() if name not in names}


@pytest.mark.parametrize(("environment", "message"), [
    ({}, "expected the variables of a launcher, found none of DUOLN_RANK, RANK, OMPI_COMM_WORLD_RANK, SLURM_PROCID"),
    ({**TORCHRUN, **SLURM}, r"torchrun: rank 3 of 4; slurm: rank 5 of 8; name the one that counts, as --ranks torchrun"),
    (without(TORCHRUN, "RANK"), "expected a number in RANK, found nothing"),
    (without(SLURM, "SLURM_NTASKS"), "expected a number in SLURM_NTASKS, found nothing"),
    ({**OURS, "DUOLN_RANK": "-1"}, "expected a number in DUOLN_RANK, found '-1'"),
    ({**OURS, "DUOLN_RANK": "²"}, "expected a number in DUOLN_RANK, found '²'"),
    ({**OURS, "DUOLN_RANK": "2"}, "expected DUOLN_RANK between 0 and 1, as DUOLN_RANK_COUNT says, found 2"),
    ({**OURS, "DUOLN_RANK_COUNT": "0", "DUOLN_RANK": "0"}, "expected DUOLN_RANK_COUNT of at least 1, found 0"),
    (without(TORCHRUN, "MASTER_PORT"), "expected a number in MASTER_PORT, found nothing"),
    (without(TORCHRUN, "MASTER_ADDR"), "expected MASTER_ADDR beside MASTER_PORT, found nothing"),
    (without(OPENMPI, "DUOLN_RANK_MEETING"), "expected DUOLN_RANK_MEETING=HOST:PORT on every rank"),
    (without(SLURM, "SLURM_JOB_NODELIST"), "expected DUOLN_RANK_MEETING=HOST:PORT on every rank"),
    ({**OURS, "DUOLN_RANK_MEETING": "node1"}, "expected DUOLN_RANK_MEETING as HOST:PORT, found 'node1'"),
    ({**OURS, "DUOLN_RANK_MEETING": "fe80::1:80"}, "expected one host name or IPv4 address in DUOLN_RANK_MEETING, found 'fe80::1'"),
    ({**OURS, "DUOLN_RANK_MEETING": ":80"}, "expected one host name or IPv4 address in DUOLN_RANK_MEETING, found ''"),
    ({**OURS, "DUOLN_RANK_MEETING": "node1:70000"}, "expected a number of at most 65535 in DUOLN_RANK_MEETING, found 70000"),
    ({**OURS, "DUOLN_RANK_MEETING": "node1:"}, "expected a number in DUOLN_RANK_MEETING, found nothing"),
    ({**TORCHRUN, "MASTER_PORT": "80000"}, "expected a number of at most 65535 in MASTER_PORT, found 80000"),
    ({**TORCHRUN, "MASTER_PORT": "65535", "TORCHELASTIC_USE_AGENT_STORE": "True"}, "at most 65534 in MASTER_PORT, found 65535"),
    ({**TORCHRUN, "MASTER_PORT": "0"}, "expected a port of at least 1 in MASTER_PORT, found 0"),
    (without(OURS, "DUOLN_RANK_TOKEN"), "expected the same secret of at least 16 characters on every rank"),
    ({**OURS, "DUOLN_RANK_TOKEN": "short"}, "found 5 characters"),
    ({**OURS, "DUOLN_RANK_TOKEN": " " * 40}, "found 0 characters")])
def test_what_is_missing_or_contradicts_is_named(environment, message):
    with pytest.raises(UsageError, match=message):
        find_rank("auto", dict(environment))


@pytest.mark.parametrize("host", ["::1", "10.0.0.7 172.17.0.1 ", "a" * 64, "a." * 127 + "a", "x..y", "caf\udce9", "tcp://node1", "node1\n"])
def test_what_is_no_host_is_named_on_every_rank(host):
    """As `hostname -I` gives it, for example: each rank would try to find it until its time is up."""
    for rank in "01":
        with pytest.raises(UsageError, match="expected one host name or IPv4 address in MASTER_ADDR, found"):
            find_rank("auto", {**TORCHRUN, "RANK": rank, "MASTER_ADDR": host})


def test_a_named_launcher_settles_a_contradiction():
    assert find_rank("slurm", {**TORCHRUN, **SLURM}).rank == 5
    assert find_rank("torchrun", {**TORCHRUN, **SLURM}).rank == 3


def test_the_secret_in_a_file_that_only_we_can_read(tmp_path):
    file = tmp_path / "token"
    file.write_text("a secret of some length\n")
    environment = {**without(OURS, "DUOLN_RANK_TOKEN"), "DUOLN_RANK_TOKEN_FILE": str(file)}
    file.chmod(0o640)
    with pytest.raises(UsageError, match="readable by you alone, found mode 0640"):
        find_rank("auto", dict(environment))
    file.chmod(0o600)
    assert find_rank("auto", dict(environment)).token == b"a secret of some length"
    with pytest.raises(UsageError, match=r"DUOLN_RANK_TOKEN_FILE: .*No such file"):
        find_rank("auto", {**environment, "DUOLN_RANK_TOKEN_FILE": str(tmp_path / "nowhere")})


@pytest.mark.parametrize(("visible", "local", "chosen"), [(None, 2, "2"), ("4,5,6", 1, "5"), ("GPU-7", 3, "GPU-7"), ("", 1, "")])
def test_a_rank_sees_the_gpu_of_its_number_on_its_machine(visible, local, chosen):
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    choose_gpu(local, environment)
    assert environment == {"CUDA_VISIBLE_DEVICES": chosen}


def test_more_ranks_than_gpus_are_told():
    with pytest.raises(UsageError, match="expected a GPU for each rank of this machine, found CUDA_VISIBLE_DEVICES=0,1"):
        choose_gpu(2, {"CUDA_VISIBLE_DEVICES": "0,1"})
