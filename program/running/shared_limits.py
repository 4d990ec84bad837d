"""One budget and one gate for each host, shared by all processes of a job: an actor holds them, its clients ask it."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from threading import Lock
from typing import Any

from program.common.settings import WireSettings
from program.lms.limits import Budget, BudgetSpent, Gate, gates_made_by

__all__ = ("Limits", "Shared", "start_limits")

_WAITING, _TELLING = "waiting", "telling"
_CALL = "a call in flight"


class Limits:
    """What a job's workers share: its budget, its gates, and which rows were begun how often. Thread-safe.

    What a worker holds (calls that are not settled, places in a gate) is free again when it starts anew after a kill.
    """

    def __init__(self, **limits: float | None) -> None:
        self._budget = Budget(**limits) if limits else None  # type: ignore[arg-type] # those of `Budget.limits`
        self._gates: dict[str, Gate] = {}
        self._held: defaultdict[str, list[tuple[str, Callable[[], object]]]] = defaultdict(list)
        """By worker: each call in flight and each place at a host, with what frees it."""
        self._begun: dict[str, int] = {}
        self._lock = Lock()
        self._stopped = ""

    def enter(self, worker: str) -> bool:
        """Take in a worker that starts, for the first time or anew; tell whether there is a budget."""
        with self._lock:
            held = self._held.pop(worker, [])
        for _, free in held:
            free()
        return self._budget is not None

    def begin(self, work: str) -> tuple[int, str]:
        """Count that a piece of work begins; return how often it has, and why the job ends where it does."""
        with self._lock:
            self._begun[work] = self._begun.get(work, 0) + 1
            return self._begun[work], self._stopped

    def end(self, work: str) -> None:
        """Forget a piece of work that is finished."""
        with self._lock:
            self._begun.pop(work, None)

    def stop(self, reason: str) -> None:
        """Let no worker begin anything else."""
        self._stopped = self._stopped or reason

    def charge(self, worker: str) -> str:
        """Charge one call once the budget admits it; return why it is spent, or nothing."""
        if self._budget is None:
            return ""
        try:
            self._budget.charge()
        except BudgetSpent as error:
            return str(error)
        # It was counted as a call; what it cost nobody knows should the worker be killed.
        self._hold(worker, _CALL, partial(self._budget.settle, 0.0, 0, ""))
        return ""

    def refund(self, worker: str) -> None:
        """Take back one charge."""
        if self._budget is not None and self._let_go(worker, _CALL):
            self._budget.refund()

    def settle(self, worker: str, cost_usd: float | None, tokens: int | None, model: str) -> None:
        """Add what a charged call cost."""
        if self._budget is not None and self._let_go(worker, _CALL):
            self._budget.settle(cost_usd, tokens, model)

    def admit(self, worker: str, host: str, limits: WireSettings) -> None:
        """Take a place in a host's gate once there is one."""
        with self._lock:
            gate = self._gates.setdefault(host, Gate(limits))
            gate.limits = limits
        place = gate.admitted()
        place.__enter__()
        self._hold(worker, host, partial(place.__exit__, None, None, None))

    def leave(self, worker: str, host: str) -> None:
        """Give one such place back."""
        if free := self._let_go(worker, host):
            free()

    def tell(self, host: str, tokens: int = 0, pause_s: float = 0.0) -> None:
        """Count the tokens of an answer, or start no call for some seconds."""
        with self._lock:
            gate = self._gates.get(host)
        if gate is not None and tokens:
            gate.spent(tokens)
        if gate is not None and pause_s:
            gate.pause(pause_s)

    def _hold(self, worker: str, what: str, free: Callable[[], object]) -> None:
        with self._lock:
            self._held[worker].append((what, free))

    def _let_go(self, worker: str, what: str) -> Callable[[], object] | None:
        """Forget one thing of a kind that a worker holds, and return what frees it; None where it holds none."""
        with self._lock:
            held = self._held[worker]
            places = [place for place, (kind, _) in enumerate(held) if kind == what]
            return held.pop(places[0])[1] if places else None


def start_limits(budget: Budget | None) -> Any:
    """Start the actor; `budget` is the one in force in this process."""
    import ray

    # Those that wait may be many: those that make room for them never queue behind them.
    actor = ray.remote(num_cpus=0, concurrency_groups={_WAITING: 512, _TELLING: 8})(Limits)
    return actor.remote(**(budget.limits if budget is not None else {}))


class Shared:
    """A worker's side of the limits."""

    def __init__(self, actor: Any, worker: str) -> None:
        self._actor = actor
        self.worker = worker
        """The worker's name; it keeps it when it starts anew."""
        self._budget = _SharedBudget(self) if self.ask("enter", worker) else None
        gates_made_by(lambda host, limits: _SharedGate(self, host, limits))

    def in_force(self) -> AbstractContextManager[object]:
        """Return the context in which this process's calls are charged to the shared budget."""
        return self._budget if self._budget is not None else nullcontext()

    def ask(self, name: str, *values: Any, wait: bool = False) -> Any:
        """Call a method of the limits and return what it says; `wait` where that may take long."""
        import ray

        return ray.get(self._sent(name, values, _WAITING if wait else _TELLING))

    def tell(self, name: str, *values: Any) -> None:
        """Call a method of the limits, and go on."""
        self._sent(name, values, _TELLING)

    def _sent(self, name: str, values: tuple[Any, ...], group: str) -> Any:
        return getattr(self._actor, name).options(concurrency_group=group).remote(*values)


class _SharedBudget(Budget):
    def __init__(self, shared: Shared) -> None:
        super().__init__()
        self._shared = shared

    def charge(self) -> None:
        if reason := self._shared.ask("charge", self._shared.worker, wait=True):
            raise BudgetSpent(reason)

    def refund(self) -> None:
        self._shared.tell("refund", self._shared.worker)

    def settle(self, cost_usd: float | None, tokens: int | None, model: str) -> None:
        self._shared.tell("settle", self._shared.worker, cost_usd, tokens, model)


class _SharedGate(Gate):
    def __init__(self, shared: Shared, host: str, limits: WireSettings) -> None:
        super().__init__(limits)
        self._shared, self._host = shared, host

    @contextmanager
    def admitted(self) -> Iterator[None]:
        self._shared.ask("admit", self._shared.worker, self._host, self.limits, wait=True)
        try:
            yield
        finally:
            self._shared.tell("leave", self._shared.worker, self._host)

    def spent(self, tokens: int) -> None:
        self._shared.tell("tell", self._host, tokens)

    def pause(self, seconds: float) -> None:
        self._shared.tell("tell", self._host, 0, seconds)
