"""Data: where files are found, readers that trust nothing, and batches as a function of the step."""

from duoln.data.batches import Batch, Batches, check_range
from duoln.data.files import Resource, cache_folder, data_folders, find
from duoln.data.idx import read_idx, write_idx
from duoln.data.npy import map_npy
from duoln.data.npz import Expected, read_npz

__all__ = ["Batch", "Batches", "Expected", "Resource", "cache_folder", "check_range", "data_folders", "find",
           "map_npy", "read_idx", "read_npz", "write_idx"]
