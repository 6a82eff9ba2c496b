"""Python's collector of cycles, in processes that keep very much and make few cycles."""

import gc

__all__ = ["freeze_heap"]

GC_THRESHOLDS = 5_000, 80, 100
"""Of objects, and of collections of the generation before. By default it looks through new objects seven times as
often, and through all that is kept, a million waiting actions for instance, whenever a quarter more has come."""


def freeze_heap() -> None:
    """What is there by now stays for ever, as far as the collector is concerned; what comes is looked at less often.

    What no cycle holds is freed at once as ever.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
