"""Data: the search for files, readers that trust nothing, and batches as a function of the step."""

from typing import Never

from duoln.core.pytorch_names import OF_DATA, unknown_name
from duoln.data.batches import Axes, Batch, Batches, check_range, count_examples, examples
from duoln.data.bounded import CONTENT_ERRORS, Unpacked, most_unpacked, opened, read_whole, size_of
from duoln.data.files import Resource, data_folders, find, packed_or_not, search_folders, visible, write_whole
from duoln.data.idx import read_idx, write_idx
from duoln.data.json_text import json_of, parse_json, read_json
from duoln.data.mnist import Digits, find_mnist, read_found, read_mnist
from duoln.data.npz import Expected, map_npy, read_npz, write_npz
from duoln.data.originals import DATA_SEED, absent, locate, original_or_made, suited_to
from duoln.data.tar import read_tar
from duoln.data.text import at_line, describe_unknown, read_lines, read_text
from duoln.system.paths import cache_folder, in_home

__all__ = ["CONTENT_ERRORS", "DATA_SEED", "Axes", "Batch", "Batches", "Digits", "Expected", "Resource",
           "Unpacked", "absent", "at_line", "cache_folder", "check_range", "count_examples", "data_folders",
           "describe_unknown", "examples", "find", "find_mnist", "in_home", "json_of", "locate", "map_npy",
           "most_unpacked", "opened", "original_or_made", "packed_or_not", "parse_json", "read_found",
           "read_idx", "read_json", "read_lines", "read_mnist", "read_npz", "read_tar", "read_text",
           "read_whole", "search_folders", "size_of", "suited_to", "visible", "write_idx", "write_npz",
           "write_whole"]


def __getattr__(name: str) -> Never:
    raise unknown_name("duoln.data", name, OF_DATA, __all__)


def __dir__() -> list[str]:
    return sorted(__all__)
