"""Lets Matplotlib be missing in every Python whose PYTHONPATH has this folder."""

import sys

sys.modules["matplotlib"] = None
