"""The Slurm engine: each node is one requeueable job."""
