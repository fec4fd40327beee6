"""`squidbot check --state`: memory documents in whose place is something else, and how they come back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from agent_core.storage.disk import write_new
from agent_core.storage.documents import DocumentFile
from agent_core.storage.integrity import documents, last_text
from agent_core.storage.layout import Layout
from gateway.cli.check.findings import Trouble

__all__ = ["unusable_documents"]


def unusable_documents(layout: Layout) -> Iterator[Trouble]:
    """Documents, and files of their versions, that are no files; the daemon answers without them."""
    for document, versions in documents(layout):
        wrong = DocumentFile(document, versions).unusable()
        if wrong is None:
            continue

        def mend(kept: Path, document: Path = document, versions: Path = versions) -> None:
            for path in (document, versions):
                if DocumentFile(path, path).unusable() is not None:
                    aside = kept / "moved" / path.parent.name / path.name
                    aside.parent.mkdir(parents=True, exist_ok=True)
                    shutil.move(path, aside)
            if not document.exists() and (text := last_text(versions)) is not None:
                write_new(document, text.encode())

        yield Trouble(
            "memory",
            f"{wrong}; squidbot answers without this memory",
            (),
            mend,
            remedy="squidbot check --state --fix puts it aside, and brings the last text back",
        )
