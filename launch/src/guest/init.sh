#!/bin/sh
# The first process of a Linux guest. Brings up the network as the kernel command line says
# (guest.name=, guest.mtu=, guest.address0=A/P[,A/P], guest.address1=...), says GUEST-UP on the console,
# and then runs what comes in on the second serial port.
/bin/busybox --install -s /bin
export PATH=/bin HOME=/root PS1= PS2=
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs tmp /dev/shm
mount -t debugfs debug /sys/kernel/debug
# On a busy machine a processor of the guest may stand still for half a minute: a driver's access to a device model waits
# for the model's turn. A lockup is one of two minutes (twice the threshold).
echo 60 >/proc/sys/kernel/watchdog_thresh

modprobe -a virtio_pci virtio_net virtio_blk virtio_rng
name=guest mtu=1500
for word in $(cat /proc/cmdline); do
    case $word in
    guest.name=*) name=${word#*=} ;;
    guest.mtu=*) mtu=${word#*=} ;;
    esac
done
hostname "$name"
ip link set lo up
for word in $(cat /proc/cmdline); do
    case $word in guest.address*) ;; *) continue ;; esac
    interface=${word%%=*}
    interface=eth${interface#guest.address}
    # Addresses can be used at once: rping asks for 2 s only, and looking for duplicates takes longer.
    echo 0 >/proc/sys/net/ipv6/conf/"$interface"/accept_dad
    ip link set "$interface" mtu "$mtu" up
    for address in $(echo "${word#*=}" | tr , ' '); do
        case $address in
        *:*) ip addr add "$address" dev "$interface" nodad ;;
        *) ip addr add "$address" dev "$interface" ;;
        esac
    done
done

# The kernel starts with one processor (see machine.rs).
for cpu in /sys/devices/system/cpu/cpu[1-9]*/online; do
    [ ! -e "$cpu" ] || echo 1 >"$cpu"
done

# Held open: a port that is opened anew forgets what has come in.
exec 9<>/dev/ttyS1
stty raw -echo 115200 <&9
echo "GUEST-UP after $(cut -d' ' -f1 /proc/uptime) s" >/dev/console
while :; do
    setsid dash </dev/ttyS1 >/dev/ttyS1 2>&1
    sleep 1
done
