"""Data: where files are found, readers that trust nothing, and batches as a function of the step."""

from duoln.data.batches import Axes, Batch, Batches, check_range, count_examples, examples
from duoln.data.files import Resource, cache_folder, data_folders, find
from duoln.data.idx import read_idx, write_idx
from duoln.data.mnist import Digits, read_mnist
from duoln.data.npy import map_npy
from duoln.data.npz import Expected, read_npz

__all__ = ["Axes", "Batch", "Batches", "Digits", "Expected", "Resource", "cache_folder", "check_range",
           "count_examples", "data_folders", "examples", "find", "map_npy", "read_idx", "read_mnist", "read_npz",
           "write_idx"]
