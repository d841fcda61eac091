#!/bin/sh
# node.sh [OPTION...] HOST COMMAND...: mpirun's remote shell. The command runs here under another host name: the BTL
# takes no peers on its own node, which it knows by its name.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec unshare --uts sh -c 'hostname "$0" && exec sh -c "$*"' "$host" "$@"
