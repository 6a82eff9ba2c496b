"""The index of queued actions, allocations and environments in memory."""
