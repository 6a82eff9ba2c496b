"""Reasons for which an image cannot be pulled."""

from enum import StrEnum

__all__ = ["DEFINITE_FAILURES", "ImageFailure"]


class ImageFailure(StrEnum):
    """Why a node could not pull an image. Actions that need the image settle as `infra_error` with this reason."""

    NOT_FOUND = "image_not_found"  # the registry has no such repository, tag or digest
    UNAUTHORIZED = "image_unauthorized"  # the registry refuses the credentials, or demands some
    INVALID = "image_invalid"  # a wrong digest, another architecture, an unsafe or too large layer
    REGISTRY_UNAVAILABLE = "registry_unavailable"  # no answer, or server errors, until the node gave up
    INTERRUPTED = "image_pull_interrupted"  # the process that pulls ended without a result
    STORE_FULL = "image_store_full"  # images in use leave no room on the node


DEFINITE_FAILURES = frozenset({ImageFailure.NOT_FOUND, ImageFailure.UNAUTHORIZED, ImageFailure.INVALID})
"""Failures that another node would have as well."""
