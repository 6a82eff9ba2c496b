"""The queue: order, fairness, quotas, gangs, reservations."""
