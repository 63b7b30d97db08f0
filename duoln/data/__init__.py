"""Data: where files are found, readers that trust nothing, and batches as a function of the step."""

from duoln.data.batches import Axes, Batch, Batches, check_range, count_examples, examples
from duoln.data.bounded import CONTENT_ERRORS, Unpacked, most_unpacked, opened, read_whole, size_of
from duoln.data.files import Resource, data_folders, find
from duoln.data.idx import read_idx, write_idx
from duoln.data.json_text import json_of, parse_json, read_json
from duoln.data.mnist import Digits, read_mnist
from duoln.data.npy import map_npy
from duoln.data.npz import Expected, read_npz
from duoln.data.tar import read_tar
from duoln.data.text import read_text
from duoln.system.cache import cache_folder

__all__ = ["CONTENT_ERRORS", "Axes", "Batch", "Batches", "Digits", "Expected", "Resource", "Unpacked",
           "cache_folder", "check_range", "count_examples", "data_folders", "examples", "find",
           "json_of", "map_npy", "most_unpacked", "opened", "parse_json", "read_idx", "read_json",
           "read_mnist", "read_npz", "read_tar", "read_text", "read_whole", "size_of", "write_idx"]
