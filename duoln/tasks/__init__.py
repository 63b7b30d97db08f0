"""Tasks: what one is (`task`), what its methods give and take (`values`), its `settings`, how plug-ins bring tasks
(`hookspecs`), where they are found (`registry`), and where their corpora are (`originals`).
"""

from typing import TYPE_CHECKING

from duoln.core.public_names import only_public
from duoln.system.paths import in_home
from duoln.tasks.hookspecs import Command, hookimpl
from duoln.tasks.originals import DATA_SEED, absent, locate, original_or_made, suited_to
from duoln.tasks.settings import make_config, option
from duoln.tasks.task import Config, Task
from duoln.tasks.values import Column, Dataset, Findings, ReferenceCurve, ReferenceTable, Splits, Trained

if TYPE_CHECKING:
    from duoln.training.train import train

__all__ = ["DATA_SEED", "Column", "Command", "Config", "Dataset", "Findings", "ReferenceCurve", "ReferenceTable",
           "Splits", "Task", "Trained", "absent", "hookimpl", "in_home", "locate", "make_config", "option",
           "original_or_made", "suited_to", "train"]
only_public(globals(), lazy={"train": "duoln.training.train:train"})
