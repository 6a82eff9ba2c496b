"""Examples of images in the OpenAPI document."""

from typing import Any

__all__ = ["NODE_IMAGE"]

NODE_IMAGE: dict[str, Any] = {
    "name": "docker.io/library/python:3.12",
    "node": "vm",
    "state": "pulling",
    "digest": "sha256:5c1f3a7d2c8e4b9f0a6d1e2c3b4a5968778695a4b3c2d1e0f1a2b3c4d5e6f708",
    "bytes": 371195904,
    "bytes_done": 104857600,
    "changed_at": "2026-03-02T09:00:00Z",
}
