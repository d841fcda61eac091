#!/bin/sh
# A gateway under Proxmox VE: never run. As root on the node:  proxmox.sh ID STORAGE BRIDGE
# In this directory: gateway.qcow2 (./isthmus image qcow2), config-disk.raw (./isthmus image config-disk) and seed.iso
# (docs/configuration.md#a-seed-disk).
set -eu
id=$1 storage=$2 bridge=$3

# Its own CD-ROM for cloud-init is no disk for the appliance, which takes the seed from a disk with the serial number
# isthmus-seed. Without pre-enrolled keys: the image is not signed for Secure Boot.
qm create "$id" --name "isthmus-$id" --machine q35 --bios ovmf --efidisk0 "$storage:1,pre-enrolled-keys=0" \
    --cpu max --cores 1 --memory 256 --balloon 0 --rng0 source=/dev/urandom \
    --serial0 socket --vga serial0 --net0 "virtio,bridge=$bridge"
qm set "$id" --virtio0 "$storage:0,import-from=$PWD/gateway.qcow2,serial=isthmus-system"
qm set "$id" --virtio1 "$storage:0,import-from=$PWD/config-disk.raw,serial=isthmus-config"
qm set "$id" --virtio2 "$storage:0,import-from=$PWD/seed.iso,serial=isthmus-seed,ro=1"
qm set "$id" --virtio3 "$storage:32,serial=data"
qm set "$id" --boot order=virtio0
# Names config disk and seed as well, so that the appliance notices if one is missing.
qm set "$id" --args "-smbios type=11,value=isthmus.config_disk=serial:isthmus-config,value=isthmus.seed=serial:isthmus-seed"
qm start "$id"
