"""Tasks: what one is (`task`), what its methods give and take (`values`), its `settings`, how plug-ins bring tasks
(`hookspecs`), and where they are found (`registry`).
"""

from duoln.tasks.hookspecs import Command, hookimpl
from duoln.tasks.settings import make_config, option, parse_settings
from duoln.tasks.task import Config, Task
from duoln.tasks.values import Column, Dataset, Findings, ReferenceCurve, ReferenceTable, Splits, Trained

__all__ = ["Column", "Command", "Config", "Dataset", "Findings", "ReferenceCurve", "ReferenceTable", "Splits", "Task",
           "Trained", "hookimpl", "make_config", "option", "parse_settings"]
