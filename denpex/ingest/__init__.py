"""Turns any input (spool, log files, archive) into a Snapshot."""

from denpex.ingest.inputs import load

__all__ = ["load"]
