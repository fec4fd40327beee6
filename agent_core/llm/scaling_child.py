"""
The process that makes pictures smaller. Before anything of others is loaded the process gives up the network
and every file but its libraries (`confinement`), so a picture that breaks a decoder gets hold of nothing but
itself. How many pixels are decoded is bounded before that is done, and its memory by the kernel.
"""

from __future__ import annotations

import base64
import io
import threading
from collections.abc import Mapping
from typing import Any

from agent_core.children.service_child import Work, serve_engine
from agent_core.children.service_confinement import library_paths

_MEMORY_BYTES = 600_000_000
_MAX_PIXELS = 50_000_000
"""Most pixels, of four bytes each; a JPEG of more is decoded at an eighth of its size."""
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF")


def _scaled(request: Mapping[str, Any], _: threading.Event) -> str:
    """The answer to one request: the picture as a JPEG of at most ``side`` pixels a side, on white."""
    from PIL import Image, ImageOps  # noqa: PLC0415 - after the process was confined

    side = (int(request["side"]),) * 2
    with Image.open(io.BytesIO(base64.b64decode(request["picture"])), formats=_FORMATS) as opened:
        opened.draft("RGB", side)
        if opened.width * opened.height > _MAX_PIXELS:
            raise ValueError(f"a picture of {opened.width} × {opened.height} pixels")
        opened.thumbnail(side)
        picture = ImageOps.exif_transpose(opened).convert("RGBA")
    flat = Image.new("RGB", picture.size, "white")
    flat.paste(picture, mask=picture.getchannel("A"))
    made = io.BytesIO()
    flat.save(made, "JPEG", quality=85)
    return base64.b64encode(made.getvalue()).decode()


def _load() -> Work:
    from PIL import Image  # noqa: PLC0415 - after the process was confined

    Image.init()
    Image.MAX_IMAGE_PIXELS = None  # counted above, after a JPEG has said how small it can be decoded

    return _scaled


def main() -> None:
    """Serve the socket that is named on the command line."""
    serve_engine(_load, readable=library_paths("agent_core", "PIL"), memory_bytes=_MEMORY_BYTES)


if __name__ == "__main__":
    main()
