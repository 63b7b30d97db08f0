"""Tasks: what one is (`spec`), how plug-ins bring them (`hookspecs`), and where they are found (`registry`)."""

from duoln.tasks.hookspecs import hookimpl
from duoln.tasks.spec import (
    Column,
    Config,
    Dataset,
    Findings,
    ReferenceCurve,
    Splits,
    Task,
    Trained,
    make_config,
    option,
    parse_settings,
)

__all__ = ["Column", "Config", "Dataset", "Findings", "ReferenceCurve", "Splits", "Task", "Trained", "hookimpl",
           "make_config", "option", "parse_settings"]
