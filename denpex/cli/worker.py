"""`denpex worker`: diagnoses ended jobs and answers `denpex show`, until it is told to end."""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import sys
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from denpex import config, service, slurm, sntp, worker
from denpex.errors import ServiceError, SlurmError, SpoolError
from denpex.store import Store
from denpex.worker_engine import Diagnosis, Engine
from denpex.worker_nodes import collector


def main(argv: list[str]) -> int:
    """Run ``denpex worker [--once]``; does not return where all went well."""
    parser = argparse.ArgumentParser(prog="denpex worker", description=__doc__)
    parser.add_argument("--once", action="store_true", help="diagnose what is in the queue, answer nobody, and end")
    options = parser.parse_args(argv)
    serve(config.load(), once=options.once)
    # A node that hangs, or a long diagnosis, may still hold a thread; its run is in the queue, and nothing is lost.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def serve(configuration: config.Config, *, once: bool) -> None:
    """Work until SIGTERM or SIGINT; raises a DenpexError where that cannot begin, or the queue cannot be read."""
    if not configuration.cluster:
        # Slurm may be down just now; then each completion record's own word counts.
        with suppress(SlurmError):
            configuration = replace(configuration, cluster=slurm.cluster_name(configuration.slurm_bin))
    with ExitStack() as stack:
        try:
            configuration.queue_dir.mkdir(mode=0o750, parents=True, exist_ok=True)
            lock = stack.enter_context((Path(configuration.state_dir) / "worker.lock").open("a"))
        except OSError as error:
            raise SpoolError(
                f"the worker's directory {configuration.state_dir} cannot be used: {error.strerror}; "
                "it must belong to SlurmUser, as whom the worker runs"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ServiceError(f"another worker already works on {configuration.state_dir}; end it first") from None
        store = Store(configuration.database)
        stack.callback(store.close)
        engine = Engine(partial(Diagnosis, configuration.database))
        stack.callback(engine.close)
        work = worker.Worker(configuration, store, collector(configuration), engine)
        stack.callback(work.close)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: work.interrupt())
        if not once:
            if configuration.clock.serve:
                stack.callback(sntp.Responder(configuration.clock.serve).stop)
            stack.callback(service.serve(configuration).close)
            worker.say(f"takes completion records from {configuration.queue_dir}")
        work.run(once=once)
