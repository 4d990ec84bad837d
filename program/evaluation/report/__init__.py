"""An evaluation as people see it: tables, charts, the page and the MLflow run."""
