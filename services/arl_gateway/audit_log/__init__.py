"""The audit log: changes by administrators, as entries that administrators read."""
