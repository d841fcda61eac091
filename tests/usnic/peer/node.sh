#!/bin/sh
# node.sh [OPTION...] HOST COMMAND...: mpirun's remote shell. The command runs here under another host name, because the
# BTL refuses peers on its own node, which it identifies by host name.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec unshare --uts sh -c 'hostname "$0" && exec sh -c "$*"' "$host" "$@"
