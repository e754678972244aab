#!/bin/sh
# Runs the node code of one hook ($1: prolog or epilog) within hook_timeout, and tells syslog where it could not.
# Slurm sets no PATH, HOME, LANG or TZ.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
umask 022
cd / || exit
here=${0%/*}
limit=5 python=/usr/bin/python3 package=
# Beside the package in a checkout, inside it (denpex/_data/hooks) where it is installed.
for place in "$here/.." "$here/../../.."; do
    [ -f "$place/denpex/node/$1.py" ] && package=$place && break
done
# Read, not sourced: a file that is broken must not end this shell.
settings=${DENPEX_ETC:-/etc/denpex}/node.sh
if [ -f "$settings" ] && [ -r "$settings" ]; then
    while IFS='=' read -r name value; do
        case $name in
        DENPEX_HOOK_TIMEOUT) limit=$value ;;
        DENPEX_PYTHON) python=$value ;;
        DENPEX_PACKAGE) package=$value ;;
        esac
    done <"$settings"
fi
case $limit in '' | 0* | *[!0-9]* | ????*) limit=5 ;; esac

# Two bounds: the inner kills what does not end; the outer gives up waiting where even that does not help (a process that
# hangs in the kernel ends by no signal). The inner shell only waits, so that it can always be ended.
# shellcheck disable=SC2016 # expanded by the inner shell
exec timeout -k 1 "$((limit + 2))" /bin/sh -c '
    timeout -k 1 "$1" "$2" -I -S -c "import sys; sys.path.append(sys.argv[1]); from denpex.node import $4; $4.main()" "$3" &
    wait "$!" || logger -t denpex -p daemon.warning "$4: $2 with $3 ended with status $?: this run has a gap"
' sh "$limit" "$python" "$package" "$1"
