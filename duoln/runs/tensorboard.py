"""A listener that writes a run for TensorBoard: `duoln run --log-to tensorboard`, then `tensorboard --logdir runs`.

It is a pattern for other services too. From Python: `duoln.tasks.train(..., listeners=[TensorBoard("folder")])`; a
plug-in offers its own by the hook `duoln_listeners`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from duoln.tasks.events import Evaluation, Listener, RunStart, Update


class TensorBoard(Listener):
    """Loss and norm of the gradient of each update, the metrics of each evaluation, and the settings as a text.

    Args:
        folder: where the file of events is made, such as the folder of the run.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = str(folder)

    def on_start(self, event: RunStart) -> None:
        # A file is named by the second, and a second file of one name would replace it: each has a number too.
        number = len(list(Path(self._folder).glob("*.tfevents.*")))
        self._writer = SummaryWriter(self._folder, purge_step=event.first_update + 1,  # a resumed run repeats updates
                                     filename_suffix=f".{number:04d}.{os.getpid()}")
        settings = "\n".join(f"{key}: {value}  " for key, value in dataclasses.asdict(event.config).items())
        self._writer.add_text("settings", f"{event.task} {event.variant}, {event.dataset.label}  \n{settings}")

    def on_update(self, event: Update) -> None:
        self._writer.add_scalar("loss", event.loss, event.update)
        self._writer.add_scalar("gradient_norm", event.gradient_norm, event.update)

    def on_evaluation(self, event: Evaluation) -> None:
        for key, value in event.values.items():
            self._writer.add_scalar(key, value, event.update)

    def on_end(self, status: str, result: Mapping[str, Any]) -> None:
        self._writer.close()
