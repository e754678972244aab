"""The errors that Denpex raises on purpose; each message is a sentence a user can act on."""


class DenpexError(Exception):
    """What could not be done, to what, why, and what to do about it.

    ``exit_status`` is the status with which the command line ends.
    """

    exit_status = 1


class ConfigError(DenpexError):
    """A configuration file that cannot be used; the message begins ``path:line``."""


class PatternError(DenpexError):
    """A pattern file that cannot be used; the message begins ``path:line``."""


class SpoolError(DenpexError):
    """A spool directory or file that breaks the contract of hooks/SPOOL.md."""


class InputError(DenpexError):
    """A log, directory or archive that cannot be read as evidence."""


class SlurmError(DenpexError):
    """A Slurm command that failed, timed out or printed what cannot be understood."""


class EngineError(DenpexError):
    """A diagnosis that failed, was lost or took too long."""


class StoreError(DenpexError):
    """The verdict database cannot be opened, read or written."""


class ServiceError(DenpexError):
    """The worker cannot be asked, or refuses to answer."""


class UsageError(DenpexError):
    """A command line that cannot be understood."""

    exit_status = 2
