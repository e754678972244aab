#!/bin/sh
# Writes the environment that slurmctld gave as one file of the worker's queue ($1: the hook whose names it has).
PATH=/usr/bin:/bin
umask 027
queue=/var/lib/denpex/queue
# Read, not sourced: a file that is broken must not end this shell.
settings=${DENPEX_ETC:-/etc/denpex}/node.sh
if [ -f "$settings" ] && [ -r "$settings" ]; then
    while IFS='=' read -r name value; do
        [ "$name" = DENPEX_QUEUE_DIR ] && queue=$value
    done <"$settings"
fi
# No two processes with one number live in the same hundredth of a second.
read -r up _ </proc/uptime
name=${JOBID:-${SLURM_JOB_ID:-0}}.$$.$up
{
    printf 'DENPEX_HOOK=%s\0' "$1"
    # The environment as it was at the start, NUL-separated: values may hold anything but NUL.
    cat "/proc/$$/environ"
} >"$queue/.$name" && mv "$queue/.$name" "$queue/$name.job" && exit
rm -f "$queue/.$name"
logger -t denpex -p daemon.warning "$1: job ${JOBID:-${SLURM_JOB_ID:-?}} could not be put into $queue: the worker's next sweep finds it"
