"""The code MLflow runs for a registered program, whose folder is an artifact."""

import sys
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd

from program.agent.saving import load
from program.common.settings import load_settings
from program.running.row import Row
from program.service.requests import assess_rows
from program.tracking.models import WHOLE

_SERVERS = {"mlflow.pyfunc.scoring_server.app", "mlflow.pyfunc.stdin_server", "mlserver"}
"""Modules of a process that answers the requests of others."""


class ServedProgram(mlflow.pyfunc.PythonModel):
    """A compiled program over rows of a table, with settings and keys of the environment.

    Loaded in one's own process it reads any file, as the program itself does. A server's clients
    name files of the settings' folders only.
    """

    def load_context(self, context: Any) -> None:
        """Load the program that lies beside this code."""
        self._settings = load_settings()
        self._program = load(Path(context.artifacts["program"]), self._settings)

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Return one row of answers for each row of images."""
        rows = model_input.to_dict(orient="records")
        # As objects, or an empty number becomes NaN, which no JSON holds.
        answers = assess_rows(self._program, rows, self._settings, local=not _SERVERS & sys.modules.keys())
        return pd.DataFrame(answers, columns=[*Row.model_fields, WHOLE], dtype=object)


mlflow.models.set_model(ServedProgram())
