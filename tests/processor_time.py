"""Sums the processor time of a test run: own and children's, over all processes of pytest-xdist."""

import os
from collections import Counter

import pytest


def _spent() -> float:
    """Return the seconds of processor time of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class ProcessorTime:
    """Counts what each test file takes, and prints the sums at the end of the run."""

    def __init__(self):
        self.files, self.workers = Counter(), []
        self.collected = None

    def pytest_collection_finish(self):
        """Note what a process took from its start until all tests were known."""
        self.collected = _spent()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        """Count a test for its file, with its fixtures."""
        before = _spent()
        result = yield
        self.files[item.location[0]] += _spent() - before
        return result

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        """Hand a worker's counts to the process that started it."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["processor_time"] = self._counts(_spent())

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        """Keep a worker's counts; one that was killed has left none."""
        counts = getattr(node, "workeroutput", {}).get("processor_time")
        if counts is not None:
            self.workers.append(counts)

    def pytest_terminal_summary(self, terminalreporter):
        """Print the sum, each worker's collection, and the ten files that took most."""
        if self.workers:
            # The workers are children of this process, and count for themselves.
            own = os.times().user + os.times().system
            workers, total = self.workers, own + sum(counts["spent"] for counts in self.workers)
        else:
            workers, total = [self._counts(_spent())], _spent()
        files = Counter()
        for counts in workers:
            files.update(counts["files"])
        collections = ", ".join(f"{counts['collected']:.1f}" for counts in workers)
        terminalreporter.section("processor time")
        terminalreporter.write_line(f"{total:.1f} s in all; collection {collections} s")
        for file, seconds in files.most_common(10):
            terminalreporter.write_line(f"{seconds:7.1f} s  {file}")

    def _counts(self, spent):
        return {"spent": spent, "collected": self.collected or spent, "files": dict(self.files)}
