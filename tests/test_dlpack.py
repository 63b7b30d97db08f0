"""Arrays of other libraries as tensors, and tensors as their arrays, by DLPack."""

import numpy as np
import pytest

import duoln
from duoln import ops
from duoln.errors import BackendError, CompileError, DtypeError, GradientError
from duoln.testing import check_error

LAYOUTS = {"contiguous": lambda x: x, "transposed": lambda x: x.T, "strided": lambda x: x[::2, 1:], "reversed": lambda x: x[::-1],
           "scalar": lambda x: x[0, 0], "no row": lambda x: x[:0]}


@pytest.mark.parametrize("place", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool", "float16"])
def test_numpys_memory_is_shared(place, dtype):
    array = np.asarray(place((np.arange(12).reshape(4, 3) % 5).astype(dtype)))
    x = duoln.from_dlpack(array)
    assert x.backend.name == "numpy" and x.dtype == dtype and x.shape == array.shape
    assert np.array_equal(x.numpy(), array) and x.data.ctypes.data == array.ctypes.data


def test_what_the_owner_writes_changes_the_tensor_and_duoln_does_not_write():
    array = np.zeros(3, np.float32)
    x = duoln.from_dlpack(array)
    array[0] = 7
    assert x.tolist() == [7, 0, 0] and not x.data.flags.writeable
    slots = duoln.optim.Adam(0.1).init({"w": x})
    gradient = {"w": ops.ones_like(x)}
    duoln.optim.Adam(0.1, donate=True).update({"w": x}, gradient, slots, duoln.tensor(0.1, x.backend))
    assert array.tolist() == [7, 0, 0]
    assert duoln.tensor(array, "numpy").data.ctypes.data != array.ctypes.data


VIEWS = {"whole": lambda x: x, "transposed": lambda x: x.T, "strided": lambda x: x[::2, 1:], "reversed": lambda x: x[::-1], "turned": lambda x: x.T[:, ::-1],
         "flipped": ops.flip, "broadcast": lambda x: ops.broadcast_to(x[:1], (4, 6)), "row, reversed": lambda x: x[:1][::-1], "no row": lambda x: x[:0][::-1],
         "scalar": lambda x: x[1, 2], "sum": ops.sum, "part": lambda x: ops.split(x, 2, axis=1)[1], "column": lambda x: ops.unstack(x, axis=1)[2],
         "permuted": lambda x: ops.permute_dims(x.reshape(2, 2, 6), (1, 2, 0)), "new axis": lambda x: x[:, None, ::-2], "int32": lambda x: x.astype("int32")[::-1],
         "bool": lambda x: (x > 3)[:, ::-2], "float16": lambda x: x.astype("float16")[::-1], "compiled": duoln.compile(lambda x: x[:, ::-1])}
ROWS = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize("view", VIEWS)
def test_what_a_reader_cannot_take_leaves_as_a_copy(view, be):
    x = VIEWS[view](duoln.tensor(ROWS, be))
    is_shared = not _is_reversed(x.data) and not isinstance(x.data, np.generic) and (x.ndim > 0 or be.name != "mlx")
    assert is_shared or view not in ("whole", "transposed", "strided", "broadcast", "part", "column", "permuted")
    assert not _is_reversed(be.exported(x.data, False, None))
    for is_old in (False, True):  # a reader that names no version of DLPack
        if is_shared and not is_old:
            assert be.exported(x.data, False, False).shape == x.shape
        elif not is_shared:
            check_error(BufferError, lambda old=is_old: be.exported(x.data, old, False), "[dlpack] copy: expected None or True, found False")
    if be.name == "cupy":
        return  # its memory is another device's
    array, old = np.from_dlpack(x), _old_reader(x)
    assert array.dtype == old.dtype == x.dtype and np.array_equal(array, x.numpy()) and np.array_equal(old, x.numpy()) and old.flags.c_contiguous
    assert np.array_equal(np.from_dlpack(x, copy=True), x.numpy())
    if be.name == "numpy" and is_shared and x.size:
        assert array.ctypes.data == x.data.ctypes.data != old.ctypes.data and np.from_dlpack(x, copy=False).ctypes.data == array.ctypes.data


def _is_reversed(native):
    return any(step < 0 for step in (native.strides if hasattr(native, "strides") else memoryview(native).strides))


def _old_reader(x):
    """An array made as JAX makes one, which names no version of DLPack, and so could not know that memory is read-only."""
    class Old:
        def __dlpack__(self, **_):
            return x.__dlpack__()

        __dlpack_device__ = x.__dlpack_device__

    return np.from_dlpack(Old())


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["numpy", "mlx"])
def test_every_view_arrives_at_the_libraries_that_are_there(view, name):
    x = VIEWS[view](duoln.tensor(ROWS, name))
    mx = pytest.importorskip("mlx.core")
    assert np.array_equal(np.array(mx.from_dlpack(x)), x.numpy()) and np.array_equal(np.array(mx.array(x)), x.numpy())
    assert np.array_equal(duoln.from_dlpack(x).numpy(), x.numpy())
    jax = pytest.importorskip("jax")
    assert np.array_equal(np.asarray(jax.numpy.from_dlpack(x)), x.numpy())


class _OnCuda:
    """An array that says that it is on a CUDA device."""

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **asked):
        raise AssertionError("nobody can read it here")


def test_refusals(numpy_backend):
    x = duoln.tensor([1.0], numpy_backend)
    check_error(DtypeError, lambda: duoln.from_dlpack([1.0]), "[from_dlpack]", "list", "duoln.tensor")
    check_error(DtypeError, lambda: duoln.from_dlpack(np.arange(3)), "int64", "duoln.tensor(x, dtype=...)")
    check_error(DtypeError, lambda: duoln.from_dlpack(np.ones(2, np.uint16)), "uint16")  # not to be read as bfloat16
    check_error(DtypeError, lambda: duoln.from_dlpack(_OnCuda(), "numpy"), "a CUDA device", "x.cpu()")
    check_error(BackendError, lambda: duoln.from_dlpack(_OnCuda()), "cupy")
    check_error(BufferError, lambda: np.from_dlpack(duoln.tensor([1.0], numpy_backend, "bfloat16")), "bfloat16", "astype")
    check_error(BufferError, lambda: x.__dlpack__(copy=False), "read-only memory")  # of a reader that names no version of DLPack
    check_error(GradientError, lambda: duoln.value_and_grad(lambda p: [np.from_dlpack(p * 2.0), p.sum()][1])(x), "[dlpack]")
    check_error(CompileError, lambda: duoln.compile(lambda p: [np.from_dlpack(p), p][1])(x), "host")


def test_over_the_stand_in_for_cupy(gpu):
    array = np.arange(3, dtype=np.float32)
    check_error(DtypeError, lambda: duoln.from_dlpack(array, gpu), "on the host", "duoln.tensor(x, backend)")
    native = gpu.shared(array)
    assert native.data.ptr == array.ctypes.data


@pytest.mark.peers
def test_pytorch():
    torch = pytest.importorskip("torch")
    t = torch.randn(3, 4)
    x = duoln.from_dlpack(t)
    assert x.data.ctypes.data == t.data_ptr() == torch.from_dlpack(x).data_ptr()
    assert torch.tensor(x).tolist() == torch.asarray(x).tolist() == t.tolist()
    assert duoln.from_dlpack(t.t()[::2]).shape == (2, 3)
    for name in ("numpy", "mlx"):
        for view in VIEWS.values():
            y = view(duoln.tensor(ROWS, name))
            assert np.array_equal(torch.from_dlpack(y).numpy(), y.numpy())
    bits = torch.from_dlpack(duoln.tensor([1.5], "mlx", "bfloat16"))
    assert bits.dtype is torch.bfloat16 and bits.item() == 1.5
    check_error(DtypeError, lambda: duoln.from_dlpack(torch.ones(2, dtype=torch.bfloat16)), "float()")
    check_error(DtypeError, lambda: duoln.from_dlpack(torch.ones(2, device="meta")), "torch.Tensor")


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_tensor_that_pytorch_traces_becomes_no_constant_without_a_word():
    torch = pytest.importorskip("torch")
    from torch._subclasses import FakeTensorMode

    needed = torch.ones(2, requires_grad=True)
    ways = (lambda x: duoln.tensor(x, "numpy"), lambda x: duoln.tensor([x[0], x[1]], "numpy"), lambda x: duoln.to_tensors([x], "mlx"),
            duoln.from_dlpack, lambda x: duoln.from_dlpack(x, "mlx"))
    for way in ways:
        def run(x, way=way):
            way(x)
            return x.sum()

        for x in (needed, needed * 2):
            check_error(GradientError, lambda x=x, way=way: way(x), "torch.", "whose gradient would be lost", "an argument", "x.detach()")
        check_error(GradientError, lambda run=run: torch.func.grad(run)(torch.ones(2)), "x.detach()")
        check_error(GradientError, lambda run=run: torch.func.jvp(run, (torch.ones(2),), (torch.ones(2),)), "x.detach()")
        check_error(GradientError, lambda run=run: torch.func.vmap(run)(torch.ones(3, 2)), "x.detach()")
        with FakeTensorMode():
            check_error(GradientError, lambda run=run: run(torch.ones(2)), "torch.FakeTensor")
    with torch.no_grad():
        assert duoln.tensor(needed, "numpy").tolist() == [1, 1]
    assert duoln.from_dlpack(needed.detach()).tolist() == [1, 1]
