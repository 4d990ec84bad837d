"""MLflow, and nothing else in the project, is spoken to here: runs, traces and registered models.

The local store is sqlite at `<mlruns>/mlflow.db` with artifacts under `<mlruns>/artifacts`; nothing is written
elsewhere. MLflow is imported when a Tracker is made, not before: it takes over a second.
"""

from program.tracking.runs import Prompt, RunHandle, Tracker
from program.tracking.spans import annotate_trace, tool_span
from program.tracking.store import dataset_name, experiment_name

__all__ = ("Prompt", "RunHandle", "Tracker", "annotate_trace", "dataset_name", "experiment_name", "tool_span")
