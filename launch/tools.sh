#!/bin/sh
# Unpacks the tools that this machine lacks below target/tools, from Debian's packages. Nothing is installed, nothing of
# the machine is changed, and root is not needed: apt works on package lists of its own (target/tools/apt).
#
#   launch/tools.sh [--no-install] GROUP...     groups: rust c link guest qemu images servers nbd prometheus lint vfio-user lists
#
# A group whose programs are in PATH already costs nothing. The others are announced with their size, downloaded and
# unpacked, and target/tools/bin gets a wrapper for each of their programs. Callers put that directory behind PATH, so
# that programs of the machine come first. With --no-install the missing groups are listed, and the exit status is 3.
set -eu

top=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-target}
case $target in /*) ;; *) target=$top/$target ;; esac
tools=$target/tools
PATH=$PATH:/usr/sbin:/sbin:$tools/bin

say() { printf '%s\n' "$*" >&2; }
fail() { say "isthmus: $*"; exit 1; }
has() { for program; do command -v "$program" >/dev/null 2>&1 || return 1; done; }

# The packages of a group. gcc-12 is the compiler that Debian 12's kernels are built with. Clippy finds the standard
# library beside itself, so a compiler of the same release comes with it.
packages() {
    case $1 in
    rust) echo rustc-web cargo-web rust-web-src ;;
    c) echo gcc-12 libc6-dev ;;
    link) echo lld ;;
    guest) echo gcc-12 libc6-dev make kmod xz-utils libelf1 e2fsprogs ;;
    qemu | vfio-user) echo qemu-system-x86 ;;
    images) echo qemu-utils ;;
    servers) echo dnsmasq-base chrony rsyslog rsyslog-openssl ;;
    nbd) echo qemu-utils nbdkit nbd-server ;;
    prometheus) echo prometheus ;;
    lists) ;;
    lint) echo rustc-web cargo-web rust-web-src rust-web-clippy rustfmt-web ;;
    *) fail "launch/tools.sh: no group is called $1" ;;
    esac
}

# The programs of a group that the launcher runs.
programs() {
    case $1 in
    rust) echo rustc rustdoc cargo ;;
    c) echo cc gcc gcc-12 ar as ld nm objcopy objdump ranlib readelf strip ;;
    link) echo ld.lld lld-link ;;
    guest) echo gcc-12 make depmod modprobe xz mke2fs ;;
    qemu) echo qemu-system-x86_64 ;;
    images) echo qemu-img ;;
    servers) echo dnsmasq chronyd rsyslogd ;;
    nbd) echo qemu-nbd nbdkit nbd-server ;;
    prometheus) echo promtool prometheus ;;
    lint) echo rustc rustdoc cargo cargo-clippy clippy-driver cargo-fmt rustfmt ;;
    esac
}

purpose() {
    case $1 in
    rust) echo "the compiler of the launcher and the image" ;;
    c) echo "linking host programs" ;;
    link) echo "linking the image" ;;
    guest) echo "building the modules and disks of Linux guests" ;;
    qemu) echo "running machines" ;;
    images) echo "converting disk images" ;;
    servers) echo "name, time and log servers for the image" ;;
    nbd) echo "NBD servers for remote volumes" ;;
    prometheus) echo "Prometheus, and checking its rules" ;;
    lint) echo "formatting and linting the source" ;;
    lists) echo "package lists for making guests" ;;
    vfio-user) echo "running machines with device models: a QEMU of 10.1 or later" ;;
    esac
}

# Succeeds when nothing is to be unpacked for a group. (The launcher asks for `rust` only if no compiler suits it.)
is_there() {
    # A later commit may have added programs to a group.
    # shellcheck disable=SC2046 # words
    if [ -e "$tools/stamps/$1" ] && has $(programs "$1"); then return 0; fi
    case $1 in
    # Only the compiler's own release will do: callers look beside the compiler first.
    rust | lint | vfio-user) return 1 ;;
    # Package lists of the last 24 hours, for making guests.
    lists) [ -n "$(find "$tools/apt/ready" -mtime 0 2>/dev/null)" ] ;;
    c) has cc ar objcopy strip && echo 'int main(void) { return 0; }' | cc -x c -o /dev/null - 2>/dev/null ;;
    # objtool, which comes with the kernel's headers, is linked with libelf.
    guest) has gcc-12 make depmod modprobe xz mke2fs && ldconfig -p | grep -q 'libelf\.so\.1 ' ;;
    *) has $(programs "$1") ;;
    esac
}

# apt on lists and caches of its own, as if no package were installed.
apt() {
    program=$1
    shift
    APT_CONFIG=$tools/apt/apt.conf "$program" "$@"
}

# The vfio-user QEMU is of Debian 13's backports; everything else is of the releases that this machine's apt knows.
suites() {
    [ "$1" = vfio-user ] || return 0
    site=$(apt-get indextargets --format '$(ORIGIN)|$(LABEL)|$(SITE)' 'Created-By: Packages' |
        sed -n 's/^Debian|Debian|//p' | head -n 1)
    [ -n "$site" ] || fail "apt has no source with Debian's own packages"
    printf 'deb %s %s main\n' "$site" trixie "$site" trixie-backports
}

prepare_apt() {
    apt=$tools/apt
    ! is_there lists || return 0
    has apt-get dpkg-deb || fail "this system has no apt: automatic setup needs Debian 12 or later." \
        "Install by hand: Rust 1.91 or later with rust-src, gcc, lld, make, kmod, e2fsprogs, QEMU."
    mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$tools/bin" "$tools/stamps"
    : >"$apt/status"
    cat >"$apt/apt.conf" <<EOF
Dir::State "$apt/state";
Dir::State::Lists "$apt/state/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
APT::Sandbox::User "";
APT::Install-Recommends "false";
EOF
    say "package lists for target/tools ..."
    if apt apt-get update -q >"$apt/log" 2>&1; then
        touch "$apt/ready"
    elif [ -e "$apt/ready" ]; then
        say "isthmus: the package lists could not be updated; using those of $(date -r "$apt/ready")"
    else
        cat "$apt/log" >&2
        fail "apt-get could not fetch the package lists"
    fi
}

# Downloads the packages of a group with all that they need, and unpacks them into the tree $2.
unpack() {
    group=$1 tree=$2
    archives=$tools/apt/cache/$group
    mkdir -p "$archives/partial" "$tree"
    options="-o Dir::Cache::archives=$archives"
    if [ -n "$(suites "$group")" ]; then
        suites "$group" >"$tools/apt/$group.list"
        mkdir -p "$tools/apt/$group/partial"
        options="$options -o Dir::Etc::SourceList=$tools/apt/$group.list -o Dir::Etc::SourceParts=-"
        options="$options -o Dir::State::Lists=$tools/apt/$group -t trixie-backports"
        # shellcheck disable=SC2086 # words
        apt apt-get $options update -q >"$tools/apt/log" 2>&1 || { cat "$tools/apt/log" >&2; fail "no package lists"; }
    fi
    # shellcheck disable=SC2046,SC2086 # words
    size=$(apt apt-get $options install --assume-no $(packages "$group") 2>/dev/null | grep -E '^(Need|After)' | tr '\n' ' ')
    say "unpacking into $tree: $(packages "$group") ($(purpose "$group")). $size"
    # shellcheck disable=SC2046,SC2086
    apt apt-get $options install --download-only -y -q $(packages "$group") >"$tools/apt/log" 2>&1 ||
        { cat "$tools/apt/log" >&2; fail "apt-get could not download: $(packages "$group")"; }
    # A package that another group has unpacked is not unpacked again.
    mkdir -p "$tree/.unpacked"
    export tree
    find "$archives" -name '*.deb' -print | while read -r deb; do
        [ -e "$tree/.unpacked/${deb##*/}" ] || echo "$deb"
    done | xargs -r -P "$(nproc)" -n 1 sh -c '
        dpkg-deb --fsys-tarfile "$0" | tar -x -C "$tree" --keep-directory-symlink --no-same-owner \
            --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale && touch "$tree/.unpacked/${0##*/}"' ||
        fail "a package could not be unpacked in $tree"
    rm -rf "$archives"
}

# Writes the wrapper target/tools/bin/$1 for the program $2 of the tree: started by the tree's own dynamic linker with
# the tree's libraries, which the processes that it starts do not inherit.
wrap() {
    name=$1 program=$2 before=${3:-}
    cat >"$tools/bin/$name.new" <<EOF
#!/bin/sh
$before
exec "$loader" --argv0 "$tools/bin/$name" --library-path "$libraries" "$program" "\$@"
EOF
    chmod 755 "$tools/bin/$name.new"
    mv "$tools/bin/$name.new" "$tools/bin/$name"
}

# The same for a compiler driver, which starts programs of the tree: they inherit the tree's libraries, but for those of
# the C library, which have to be of one version with the machine's dynamic linker.
wrap_driver() {
    cat >"$tools/bin/$1.new" <<EOF
#!/bin/sh
LD_LIBRARY_PATH="$tools/lib" exec "$tree/usr/bin/$2" --sysroot="$tree" "\$@"
EOF
    chmod 755 "$tools/bin/$1.new"
    mv "$tools/bin/$1.new" "$tools/bin/$1"
}

# Fills target/tools/lib with links to the tree's libraries without those of libc6.
link_libraries() {
    mkdir -p "$tools/lib" "$tools/elf"
    find "$tree/usr/lib/x86_64-linux-gnu" "$tree/lib/x86_64-linux-gnu" -maxdepth 1 -name '*.so*' 2>/dev/null |
        grep -vE '/(ld-linux|lib(c|m|dl|rt|pthread|resolv|util|mvec|anl|nsl|nss_[a-z]*|thread_db|BrokenLocale|c_malloc_debug|memusage|pcprofile))[-.]' |
        xargs -r ln -sf -t "$tools/lib"
    for library in "$tree"/usr/lib/x86_64-linux-gnu/libelf* "$tree"/lib/x86_64-linux-gnu/libz.so*; do
        [ ! -e "$library" ] || ln -sf "$library" "$tools/elf/"
    done
}

wrap_group() {
    loader=$tree/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2
    libraries=$tree/usr/lib/x86_64-linux-gnu:$tree/lib/x86_64-linux-gnu
    for program in $(programs "$1"); do
        case $program in
        cc | gcc | gcc-12) for name in $program "x86_64-linux-gnu-$program"; do wrap_driver "$name" gcc-12; done ;;
        cargo) wrap cargo "$tree/usr/bin/cargo" "export CARGO=\"$tools/bin/cargo\"" ;;
        # cargo and build scripts ask the compiler for its sysroot, which it finds by the path of its libraries.
        rustc | rustdoc) wrap "$program" "$tree/usr/bin/$program" ;;
        depmod | modprobe) wrap "$program" "$tree/bin/kmod" ;;
        mke2fs) wrap mke2fs "$tree/sbin/mke2fs" ;;
        qemu-system-x86_64) wrap_qemu "$program" ;;
        ar | as | ld | nm | objcopy | objdump | ranlib | readelf | strip)
            for name in $program "x86_64-linux-gnu-$program"; do wrap "$name" "$tree/usr/bin/$program"; done ;;
        dnsmasq | chronyd) wrap "$program" "$tree/usr/sbin/$program" ;;
        rsyslogd) wrap "$program" "$tree/usr/sbin/$program" "export RSYSLOG_MODDIR=\"$tree/usr/lib/x86_64-linux-gnu/rsyslog\"" ;;
        nbd-server) wrap "$program" "$tree/bin/$program" ;;
        nbdkit) wrap_nbdkit ;;
        *) wrap "$program" "$tree/usr/bin/$program" ;;
        esac
    done
    # A kernel module is built with all of binutils under Debian's names.
    [ "$1" != guest ] || wrap_group c
}

# nbdkit looks for plugins and filters below /usr, unless they are given by path. Its options are words of their own.
wrap_nbdkit() {
    cat >"$tools/bin/nbdkit" <<EOF
#!/bin/sh
directory="$tree/usr/lib/x86_64-linux-gnu/nbdkit" plugin=
for word; do
    shift
    case \$word in
    --filter=*) word=--filter=\$directory/filters/nbdkit-\${word#--filter=}-filter.so ;;
    -*) ;;
    *) [ -n "\$plugin" ] || word=\$directory/plugins/nbdkit-\$word-plugin.so; plugin=true ;;
    esac
    set -- "\$@" "\$word"
done
exec "$loader" --argv0 "$tools/bin/nbdkit" --library-path "$libraries" "$tree/usr/bin/nbdkit" "\$@"
EOF
    chmod 755 "$tools/bin/nbdkit"
}

wrap_qemu() {
    firmware="-L \"$tree/usr/share/qemu\" -L \"$tree/usr/share/seabios\" -L \"$tree/usr/lib/ipxe/qemu\""
    cat >"$tools/bin/$1" <<EOF
#!/bin/sh
export QEMU_MODULE_DIR="$tree/usr/lib/x86_64-linux-gnu/qemu"
exec "$loader" --argv0 "$tools/bin/$1" --library-path "$libraries:$tree/usr/lib/x86_64-linux-gnu/systemd" \
"$tree/usr/bin/$1" $firmware "\$@"
EOF
    chmod 755 "$tools/bin/$1"
}

install=true
[ "${1:-}" != --no-install ] || { install=false; shift; }
mkdir -p "$tools/stamps" "$tools/bin"
missing=
for group; do
    packages "$group" >/dev/null
    is_there "$group" || missing="$missing $group"
done
[ -n "$missing" ] || exit 0
if ! $install; then
    for group in $missing; do say "missing, $(purpose "$group"): $(packages "$group")"; done
    say "Without --no-install they are unpacked below $tools; nothing is installed."
    exit 3
fi
# One at a time in a checkout.
exec 9>"$tools/.lock"
flock 9
prepare_apt
for group in $missing; do
    [ "$group" != lists ] || continue
    ! is_there "$group" || continue
    tree=$tools/root
    [ "$group" != vfio-user ] || tree=$target/qemu-vfio-user
    unpack "$group" "$tree"
    if [ "$group" != vfio-user ]; then
        link_libraries
        wrap_group "$group"
    fi
    touch "$tools/stamps/$group"
done
