#!/bin/sh
# build.sh DIRECTORY: builds the stock peer there.
#   mca_btl_usnic.so      btl/usnic of Debian's own Open MPI source package, unchanged
#   prov/libusnic-fi.so   a libfabric provider with the name "usnic", over kernel UDP sockets
#   btlpeer               the BTL without MPI
#   courier, mpiecho      a stand-in in an MPI job for a program without MPI, and a rank that sends to that program
# Debian's binary packages have no btl/usnic, because Debian's libfabric has no usNIC provider.
# Needs: openmpi-bin libopenmpi-dev libfabric-dev libpmix-dev gcc libc6-dev xz-utils.
set -e
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/prov" "$1/obj"
cd "$1"
installed=$(dpkg-query -W -f '${source:Version}' libopenmpi-dev)
upstream=${installed%-*}
source=$PWD/openmpi-$upstream
if [ ! -d "$source/opal/mca/btl/usnic" ]; then
    # Separate package lists: those of the machine stay unchanged.
    mkdir -p sources lists/partial
    site=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' | grep -v security | head -n 1)
    echo "deb-src $site bookworm main" > sources/source.list
    set -- -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$PWD/sources" -o Dir::State::lists="$PWD/lists"
    apt-get "$@" update -qq
    apt-get "$@" source -qq --download-only "openmpi=$installed"
    # Unpacked elsewhere first, so that the final directory is always complete.
    rm -rf unpacked "$source"
    mkdir unpacked
    tar xf "openmpi_$upstream.orig.tar.xz" -C unpacked "openmpi-$upstream/opal"
    mv "unpacked/openmpi-$upstream" "$source"
fi
machine=$(gcc -dumpmachine)
libraries=/usr/lib/$machine
headers=$libraries/openmpi/include
btl=$source/opal/mca/btl/usnic
compile() {
    gcc -O2 -g -fPIC -std=gnu99 -fno-strict-aliasing -pthread -Wno-deprecated-declarations \
        -DBTL_IN_OPAL=1 -DOMPI_LIBMPI_NAME='"mpi"' -DOPAL_BUILDING=1 -DHAVE_CONFIG_H -DNDEBUG \
        "-I$here/include" "-I$headers" "-I$headers/openmpi" "-I$source" "-I$btl" "$@"
}
objects=
for file in "$btl"/btl_usnic_*.c; do
    object=obj/$(basename "$file" .c).o
    [ "$object" -nt "$file" ] || compile -c -o "$object" "$file"
    objects="$objects $object"
done
gcc -shared -pthread -o mca_btl_usnic.so $objects "-L$libraries" -l:libopen-pal.so.40 -lfabric
gcc -O2 -g -fPIC -fvisibility=hidden -shared -Wall -Wextra "-I$here/include" -o prov/libusnic-fi.so "$here"/provider.c "$here"/endpoint.c "$here"/events.c -lfabric
compile -Wall -o btlpeer "$here/btlpeer.c" "-L$libraries" -l:libopen-pal.so.40 -Wl,--export-dynamic
mpicc -O2 -Wall -Wextra -o mpiecho "$here/mpiecho.c"
gcc -O2 -Wall -Wextra "-I$libraries/pmix2/include" -o courier "$here/courier.c" "-L$libraries/pmix2/lib" "-L$libraries" -l:libpmix.so.2
touch complete
