"""A training loop of one's own on several ranks, beside the same loop in one process."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import PATIENCE
from meetings import free_port

import duoln
from duoln.distributed.rank_info import LAUNCHERS
from duoln.errors import CompileError, DtypeError, UsageError
from duoln.testing import check_error

LOOP = """
import json
import sys
import numpy as np
import duoln
from duoln import nn, ops, optim

model, optimizer = nn.Linear(3, 2), optim.Adam(0.1)
rows = np.random.default_rng(0).standard_normal((4, 6, 3)).astype(np.float32)
cuts = {1: [(0, 6)], 2: [(0, 4), (4, 6)]}                    # unequal shares, so that weights count

backend = duoln.backend("mlx")
rank, count = duoln.ranks(backend)
params = duoln.init(model, 0, backend)
slots = optimizer.init(params)
gradients_of = duoln.compile(lambda p, x: duoln.value_and_grad(lambda p: (model(p, x) ** 2).mean())(p)[1])
update = duoln.compile(optimizer.update)
for number in range(4):
    low, high = cuts[count][rank]
    gradients = gradients_of(params, duoln.tensor(rows[number, low:high], backend))
    params, slots = update(params, duoln.average_gradients(gradients, high - low), slots)
print(json.dumps([rank, count, *(p.tolist() for p in params.values())]))
"""


def _ran(*told):
    mixed = {name for names in LAUNCHERS.values() for name in names} | {"MLX_RANK", "MLX_HOSTFILE"}
    plain = {name: value for name, value in os.environ.items() if name not in mixed}
    processes = [subprocess.Popen([sys.executable, "-c", LOOP], env={**plain, **variables}, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) for variables in told]
    outputs = [process.communicate(timeout=PATIENCE) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(told), outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


def _by_us():
    shared = {"DUOLN_RANK_MEETING": f"127.0.0.1:{free_port()}", "DUOLN_RANK_TOKEN": "a secret that every rank was given"}
    return [{**shared, "OMPI_COMM_WORLD_RANK": str(k), "OMPI_COMM_WORLD_SIZE": "2"} for k in range(2)]


def _by_mlx(tmp_path):
    hosts = tmp_path / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{free_port()}"] for _ in range(2)]))
    return [{"MLX_RANK": str(k), "MLX_HOSTFILE": str(hosts)} for k in range(2)]


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["mpirun", "mlx.launch"])
def test_two_ranks_train_as_one_process(tmp_path, launcher):
    first, second = _ran(*(_by_us() if launcher == "mpirun" else _by_mlx(tmp_path)))
    [alone] = _ran({})
    assert first[:2] == [0, 2] and second[:2] == [1, 2] and alone[:2] == [0, 1]
    assert first[2:] == second[2:]
    for ours, of_one in zip(first[2:], alone[2:], strict=True):
        np.testing.assert_allclose(ours, of_one, rtol=1e-4, atol=1e-6)


def test_one_process_has_its_own_gradients(be, monkeypatch):
    for names in LAUNCHERS.values():
        monkeypatch.delenv(names.rank, raising=False)
    monkeypatch.setattr("duoln.distributed.own_loop._joined", {})
    x = {"w": duoln.tensor([1.0, 2.0], be), "none": None}
    assert duoln.ranks(be) == (0, 1) and duoln.average_gradients(x, weight=3) is x


def test_wrong_calls_are_told(numpy_backend, monkeypatch):
    monkeypatch.setattr("duoln.distributed.own_loop._joined", {})
    x = duoln.tensor([1.0], numpy_backend)
    check_error(CompileError, lambda: duoln.compile(duoln.average_gradients)(x), "average_gradients", "between them")
    check_error(DtypeError, lambda: duoln.average_gradients([1.0]), "average_gradients", "1.0")
    check_error(UsageError, lambda: duoln.average_gradients(x, weight=-1.0), "weight", "-1")
    monkeypatch.setenv("DUOLN_RANK", "0")
    monkeypatch.setenv("DUOLN_RANK_COUNT", "2")
    monkeypatch.setenv("DUOLN_RANK_MEETING", "127.0.0.1:1")
    monkeypatch.setenv("DUOLN_RANK_TOKEN", "a secret that every rank was given")
    check_error(UsageError, lambda: duoln.ranks(numpy_backend), "numpy", "engine")
