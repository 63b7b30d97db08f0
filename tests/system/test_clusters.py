"""What the driver is asked about clusters: its structures, as a C compiler lays them out."""

import ctypes
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from duoln.errors import KernelError
from duoln.system import clusters

pytestmark = pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="a driver is compiled by gcc")

DECLARED = """
typedef enum { CLUSTER_DIMENSION = 4 } CUlaunchAttributeID;
typedef union { char pad[64]; struct { unsigned x, y, z; } clusterDim; } CUlaunchAttributeValue;
typedef struct { CUlaunchAttributeID id; char pad[8 - sizeof(CUlaunchAttributeID)]; CUlaunchAttributeValue value; } CUlaunchAttribute;
typedef struct { unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes; void* hStream;
                 CUlaunchAttribute* attrs; unsigned numAttrs; } CUlaunchConfig;
typedef void* CUfunction;
typedef int CUresult;
#define CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION CLUSTER_DIMENSION
"""
"""As the driver's manual declares them; cuda.h is not installed everywhere."""
DRIVER = """
CUresult cuOccupancyMaxActiveClusters(int* active, CUfunction function, const CUlaunchConfig* c) {
    const CUlaunchAttribute* a = c->attrs;
    if (c->gridDimX != 8 || c->gridDimY != 1 || c->gridDimZ != 1 || c->blockDimX != 256 || c->blockDimY != 1 ||
        c->blockDimZ != 1 || c->sharedMemBytes != 1000 || c->hStream || c->numAttrs != 1 ||
        a->id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION || a->value.clusterDim.x != 8 || a->value.clusterDim.y != 1 ||
        a->value.clusterDim.z != 1) return 1;
    *active = (int)(long)function;
    return function == (CUfunction)9 ? 912 : 0;
}
int sizes[2] = {sizeof(CUlaunchConfig), sizeof(CUlaunchAttribute)};
"""


def _header():
    """The folder of cuda.h, where a package of NVIDIA's has brought it."""
    spec = find_spec("nvidia")
    folders = [p for base in (spec.submodule_search_locations or () if spec else ()) for p in Path(base).glob("*/include/cuda.h")]
    return folders[0].parent if folders else None


@pytest.mark.parametrize("declarations", ["as documented", "cuda.h"])
def test_the_driver_reads_what_it_is_asked(declarations, tmp_path, monkeypatch):
    if declarations == "cuda.h" and _header() is None:
        pytest.skip("cuda.h is not installed")
    text = DECLARED if declarations == "as documented" else "#include <cuda.h>\n"
    (tmp_path / "driver.c").write_text(text + DRIVER)
    library = tmp_path / "libdriver.so"
    folders = [] if declarations == "as documented" else ["-I", str(_header())]
    subprocess.run(["gcc", "-shared", "-fPIC", *folders, str(tmp_path / "driver.c"), "-o", str(library)], check=True)
    monkeypatch.setattr(clusters, "_LIBRARY", str(library))
    assert clusters.max_active_clusters(5, 8, 256, 1000) == 5
    assert clusters.max_active_clusters(9, 8, 256, 1000) == 0  # this size does not fit
    with pytest.raises(KernelError, match="of 4 blocks with 1000 bytes ended with status 1"):
        clusters.max_active_clusters(5, 4, 256, 1000)
    sizes = (ctypes.c_int * 2).in_dll(ctypes.CDLL(str(library)), "sizes")
    assert list(sizes) == [ctypes.sizeof(clusters._Config), ctypes.sizeof(clusters._Attribute)] == [56, 72]


@pytest.mark.parametrize("library", ["libcuda-that-is-not-there.so.1", "libc.so.6"])
def test_no_driver_or_an_old_one(library, monkeypatch):
    monkeypatch.setattr(clusters, "_LIBRARY", library)
    with pytest.raises(KernelError, match=f"{library}: "):
        clusters.max_active_clusters(1, 8, 256, 0)
