"""HTTP parts that routes share: authentication, rate limits, parameters."""
