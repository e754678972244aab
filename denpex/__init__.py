"""Denpex tells why a distributed training job on a Slurm cluster died."""

__version__ = "0.1.0"
