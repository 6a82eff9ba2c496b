"""What residency says of itself with each answer of a worker."""

from dataclasses import dataclass, field

__all__ = ["ResidencyStats"]


@dataclass(slots=True)
class ResidencyStats:
    """What came and went since somebody last asked."""

    restored_s: list[float] = field(default_factory=list)
    """What each copy took."""
    cooled: int = 0
    """Services that left host memory for another one."""
    evicted: int = 0
    prefetched: int = 0
    """Of the restored ones, those that nobody waited for yet when they began."""
    failed: int = 0
    """Copies that broke off."""
