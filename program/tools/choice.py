"""Which tools to run: those that lower the expected error of the fused score most for their time. Pure.

A model's belief and tools' scores have errors on 1..5 of the covariance C, C_ij = r_ij e_i e_j. Of all their weighted
means the one with w = argmin w' C w, sum(w) = 1, w >= 0 has the least error, E = sqrt(w' C w) (Bates and Granger 1969).
From the belief alone (without one, from knowing nothing) the tool joins that lowers E most for each second, as long as
one lowers it by `LEAST_GAIN` of E. So a tool that the others or the model make superfluous does not run.
"""

from collections.abc import Mapping, Sequence

from program.tools.calibration import BeliefError, Calibration
from program.tools.registry import Cost, ToolRegistry, ToolSpec

LEAST_GAIN = 0.004
"""Of the expected error: a tool that lowers it by less is not worth running. A second tool beside a reference lowers it
by .0045, and the error on LIVE's train and validation images by .15."""
_SECONDS: Mapping[Cost, float] = {"cheap": 0.05, "medium": 0.2, "expensive": 1.0}
"""What a reading of a 384 x 384 image takes on one CPU core, by the class that the tool was measured to be in."""


def tools_that_add(ready: Sequence[ToolSpec], calibration: Calibration, belief: BeliefError | None = None) -> list[str]:
    """Return the tools to run, the most useful first; none where the belief alone is as sure.

    Where the calibration has figures of none of them, the strongest runs. Raises ToolError without any tool.

    >>> known, shipped = ToolRegistry.load(), Calibration.load(None)
    >>> tools_that_add([known.get("LiteNR"), known.get("PIQE")], shipped)
    ['LiteNR']
    >>> tools_that_add([known.get("LiteNR")], shipped, BeliefError(rmse=0.43, correlation=1.0))
    []
    """
    rest = [spec for spec in ready if calibration.precisions([(spec.name, None)])[0]]
    if not rest:
        return [ToolRegistry.best(None, ready).name]
    chosen: list[str] = []
    if belief is not None:
        error = belief.rmse
    else:
        error = max(calibration.tools[spec.name].error().spread for spec in rest)
    while rest:
        best, most = None, 0.0
        for spec in rest:
            gain = error - calibration.expected_error([*chosen, spec.name], belief)
            if gain >= LEAST_GAIN * error and gain / _SECONDS[spec.cost] > most:
                best, most = spec, gain / _SECONDS[spec.cost]
        if best is None:
            break
        rest.remove(best)
        chosen.append(best.name)
        error = calibration.expected_error(chosen, belief)
    return chosen
