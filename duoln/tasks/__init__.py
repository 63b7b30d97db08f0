"""Tasks: what one is (`task`), what its methods give and take (`values`), its `settings`, how plug-ins bring tasks
(`hookspecs`), where they are found (`registry`), and where their corpora are (`originals`).
"""

from typing import TYPE_CHECKING

from duoln.core.public_names import only_public
from duoln.tasks.hookspecs import Command, hookimpl
from duoln.tasks.settings import make_config, option
from duoln.tasks.task import Config, Task
from duoln.tasks.values import Column, Dataset, Findings, ReferenceCurve, ReferenceTable, Splits, Trained

if TYPE_CHECKING:
    from duoln.training.train import train

__all__ = ["Column", "Command", "Config", "Dataset", "Findings", "ReferenceCurve", "ReferenceTable", "Splits", "Task",
           "Trained", "hookimpl", "make_config", "option", "train"]
only_public(globals(), lazy={"train": "duoln.training.train:train"})
