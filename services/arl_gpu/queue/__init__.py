"""The queue of score jobs: batches and their order."""
