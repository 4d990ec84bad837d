"""`python -m program.runs`: the runs of compiles and evaluations in MLflow's page, which this serves and opens."""

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from program.common import cli
from program.common.errors import InputError
from program.common.keys import redact

if TYPE_CHECKING:
    from mlflow import MlflowClient

_OFFLINE = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # MLflow's job runner looks for model prices on the network at start; without one the server never comes up.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}  # fmt: skip
_PATIENCE_S = 120


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = cli.Parser(
        prog="python -m program.runs",
        description="Serve MLflow's page of all runs until Ctrl-C, and open it at a list with SRCC, gain and RMSE.",
    )
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path,
                        help="folder of the store (default: from the settings, mlruns)")  # fmt: skip
    parser.add_argument(
        "--data", metavar="NAME|MANIFEST", help="dataset whose runs to list (default: that of the last run)"
    )
    parser.add_argument("--port", metavar="N", type=cli.whole_number(1), default=5000, help="default: 5000")
    parser.add_argument("--no-browser", action="store_true", help="print the address and open nothing")
    cli.add_settings_flags(parser)
    arguments = parser.parse_args(argv)
    return cli.run_command(lambda: _serve(arguments), kept="the page is closed; the runs stay")


def _serve(arguments: argparse.Namespace) -> int:
    """Serve a store's pages until they are stopped, and return the server's exit code; one elsewhere is only opened.

    Opens the list of the runs over `--data`, or of the last run. Raises InputError where there is none, and for a port
    that is taken.
    """
    folder = arguments.folder or cli.settings_from(arguments).mlruns_dir
    port, browse = arguments.port, not arguments.no_browser
    place = "" if os.environ.get("MLFLOW_TRACKING_URI") else f" in {str(folder)!r}"
    sys.stderr.write(f"opening the runs{place} with MLflow, which takes some seconds\n")
    sys.stderr.flush()
    # After that line: these imports take a part of the seconds.
    from program.tracking.store import open_client, page_of, runs_url

    client, store = open_client(folder)
    experiment = _experiment(client, store, arguments.data)
    if store.startswith("http"):
        _tell(runs_url(page_of(store), experiment), browse=browse)
        return 0
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise InputError(f"port {port}: is taken, perhaps by another of these pages; give another with --port")
    command = [
        sys.executable, "-m", "mlflow", "server", "--artifacts-destination",
        str(folder.resolve() / "artifacts"), "--host", "127.0.0.1", "--port", str(port), "--workers", "1",
    ]  # fmt: skip
    # Other users see a command line, and an address may hold a password.
    environment = {**os.environ, **_OFFLINE, "MLFLOW_BACKEND_STORE_URI": store}
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=output) as server,  # noqa: S603
    ):
        try:
            if not _is_up(f"http://127.0.0.1:{port}/health", server):
                if server.poll() is None:
                    raise InputError(f"MLflow's server: no answer in {_PATIENCE_S} s; the machine is busy, try again")
                output.seek(0)
                last = " ".join(output.read().decode(errors="replace").strip().splitlines()[-1:])
                raise InputError(f"MLflow's server: did not start ({last}); try another folder than {str(folder)!r}")
            _tell(runs_url(f"http://127.0.0.1:{port}", experiment), browse=browse)
            return server.wait()
        finally:
            server.terminate()
            server.wait()


def _experiment(client: "MlflowClient", store: str, data: str | None) -> str:
    """Return the id of a dataset's experiment, or of the one with the last run."""
    from program.tracking.store import experiment_name

    if data is not None:
        experiment = client.get_experiment_by_name(experiment_name(data))
        ids = [experiment.experiment_id] if experiment is not None else []
    else:
        everywhere = [each.experiment_id for each in client.search_experiments()]
        last = client.search_runs(everywhere, order_by=["attributes.start_time DESC"], max_results=1)
        ids = [run.info.experiment_id for run in last]
    if not ids:
        of = f" over {data!r}" if data is not None else ""
        raise InputError(f"MLflow store {redact(store)!r}: holds no run{of}; python -m program.compile makes the first")
    return str(ids[0])


def _is_up(address: str, server: "subprocess.Popen[bytes]") -> bool:
    opener, began = urllib.request.build_opener(urllib.request.ProxyHandler({})), time.monotonic()
    while server.poll() is None and time.monotonic() - began < _PATIENCE_S:
        with contextlib.suppress(OSError), opener.open(address, timeout=2):
            return True
        time.sleep(0.2)
    return False


def _tell(address: str, *, browse: bool) -> None:
    sys.stdout.write(f"all runs  {address}  (Ctrl-C ends)\n")
    sys.stdout.flush()
    if browse:
        webbrowser.open(address)


if __name__ == "__main__":
    sys.exit(main())
