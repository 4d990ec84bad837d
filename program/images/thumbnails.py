"""Small pictures inside a page."""

import base64
import io

from PIL import Image

from program.images.store import IMAGES, LARGE, ImageSource

__all__ = ("data_url", "thumbnail")


def thumbnail(source: ImageSource, side_px: int) -> str:
    """Return an image, its longer side at most `side_px`, as a data: URL. Raises ImageError as `IMAGES.add` does."""
    return data_url(Image.fromarray(IMAGES.pixels(IMAGES.add(source), at_most=LARGE)), side_px)


def data_url(picture: Image.Image, side_px: int) -> str:
    """Return a picture as a JPEG in a data: URL."""
    picture.thumbnail((side_px, side_px), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"
