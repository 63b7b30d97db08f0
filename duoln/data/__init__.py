"""Data: readers that trust nothing, and batches as a function of the step.

What only tasks use stands in the modules below: `files` finds a corpus, `bounded` opens what may be hostile.
"""

from duoln.core.public_names import only_public
from duoln.core.pytorch_names import OF_DATA
from duoln.data.batches import Batch, Batches
from duoln.data.idx import read_idx
from duoln.data.json_text import read_json
from duoln.data.mnist import read_mnist
from duoln.data.npz import read_npz
from duoln.data.tar import read_tar
from duoln.data.text import read_lines, read_text

__all__ = ["Batch", "Batches", "read_idx", "read_json", "read_lines", "read_mnist", "read_npz", "read_tar", "read_text"]
only_public(globals(), OF_DATA)
