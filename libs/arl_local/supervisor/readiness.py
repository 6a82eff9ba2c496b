"""Asking a process on this machine whether it is ready."""

import asyncio
from urllib.parse import urlsplit, urlunsplit

__all__ = ["is_http_ok"]


async def is_http_ok(url: str, *, timeout_s: float = 2.0) -> bool:
    """Whether a GET on this http URL answers 200 now. The host must be an address: no name is looked up."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
            try:
                asked = urlunsplit(("", "", parts.path, parts.query, ""))
                writer.write(f"GET {asked} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n".encode())
                await writer.drain()
                status_line = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError, ValueError):
        return False
    return status_line.split(b" ")[1:2] == [b"200"]
