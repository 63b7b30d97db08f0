"""`duoln.bench.host` where there is no GPU: CuPy's stand-in on NumPy arrays takes its place.

    python tests/tools/host_time.py
"""

import sys

import stand_in_cupy

if __name__ == "__main__":
    sys.modules["cupy"] = stand_in_cupy.make()
    from duoln.bench import host

    sys.exit(host.main())
