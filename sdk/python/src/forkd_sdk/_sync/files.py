# Generated from _async/files.py by sdk/python/scripts/generate.py. Do not edit.
"""The files of a sandbox."""

from __future__ import annotations

from typing import Literal, overload

from .. import models
from .._core import flow, request
from .._core.call import Content
from .._core.result import FileChange
from .._core.source import WatchSource
from .stream import ByteStream, Stream
from .transport import Transport


class Files:
    """Reads and writes files of a sandbox. All paths are absolute ones in the sandbox."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport, self._id = transport, sandbox_id

    @overload
    def read(self, path: str, *, format: Literal["text"] = "text") -> str: ...

    @overload
    def read(self, path: str, *, format: Literal["bytes"]) -> bytes: ...

    def read(self, path: str, *, format: Literal["text", "bytes"] = "text") -> str | bytes:
        """The content of a file of at most 64 MiB, as UTF-8 text or as bytes.

        Raises `FileNotFoundError` (as `GuestFileNotFoundError`) if there is none.
        """
        content = self._transport.send(request.read_file(self._id, path))
        return content.decode() if format == "text" else content

    def stream(self, path: str) -> ByteStream:
        """The content of a file piece by piece, for large ones: at most 16 GiB."""
        return ByteStream(self._transport, request.stream_file(self._id, path))

    def write(
        self,
        path: str,
        data: str | Content,
        *,
        mode: int | None = None,
        user: str | None = None,
    ) -> None:
        """Writes a file: all of it or nothing. Missing directories above it are made.

        `data` is text, bytes, an open file or an iterable of pieces; `mode` are permission bits
        such as `0o755`. The file belongs to `user`, as `USER` or `USER:GROUP`: names of the guest
        or numbers. Without it a new file belongs to root.
        """
        content = data.encode() if isinstance(data, str) else data
        self._transport.send(request.write_file(self._id, path, content, mode, user))

    def list(self, path: str) -> list[models.FileEntry]:
        """What is in a directory."""
        return self._transport.send(request.list_files(self._id, path))

    def stat(self, path: str) -> models.FileEntry:
        """What kind of file it is, and its size, permissions, owner and time."""
        return self._transport.send(request.stat_file(self._id, path))

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        return self._transport.run(flow.exists(self._id, path))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file, or with `recursive` a directory and all in it."""
        self._transport.send(request.remove_file(self._id, path, recursive=recursive))

    def make_dir(self, path: str, *, user: str | None = None) -> None:
        """Makes a directory and those above it. New ones belong to `user`, or to root."""
        self._transport.send(request.make_dir(self._id, path, user))

    def watch(self, path: str, *, recursive: bool = False) -> Stream[FileChange]:
        """What happens to the files in a directory, from the `with` line on."""
        return Stream(self._transport, WatchSource(self._id, path, recursive=recursive))
