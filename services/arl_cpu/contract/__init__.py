"""The contract between node manager and launcher, with its drivers."""
