#!/bin/busybox sh
# The first program of a guest of storage-vhost, on a virtio disk of 64 MiB. The kernel's command line chooses its part.
b=/bin/busybox
for kind in devtmpfs:dev proc:proc sysfs:sys; do $b mount -t ${kind%:*} none /${kind#*:}; done
for module in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk; do
    $b insmod /$module.ko
done
disk=/sys/block/vda
echo "guest: sectors $($b cat $disk/size) serial $($b cat $disk/serial) queues $($b ls $disk/mq | $b wc -l)" \
    "cache $($b cat $disk/queue/write_cache) read-only $($b cat $disk/ro)"
echo "guest: sum $($b sha256sum /dev/vda)"
# from, to and number of blocks of 64 KiB
copy() {
    $b dd if=/dev/vda of=/dev/vda bs=64k skip=$1 seek=$2 count=$3 conv=fsync,notrunc 2>/dev/null ||
        echo "guest: error at $2"
}
case $part in
copy)
    copy 128 512 128 &
    copy 256 640 128 &
    wait
    $b blkdiscard -o 4194304 -l 1048576 /dev/vda || echo "guest: error of a discard"
    ;;
steps)
    for step in $($b seq 1 150); do
        copy $step $((768 + step)) 1
        echo "guest: step $step"
    done
    ;;
read-only) copy 0 1 1 ;;
booted) echo "guest: booted by $($b cat /proc/cmdline)" ;;
fsx | fsstress)
    $b --install -s /bin
    export PATH=/bin LD_LIBRARY_PATH=/lib
    mkdir -p /mnt /run
    chmod 755 /bin/$part
    mkfs.ext4 -q -F /dev/vda && mount -t ext4 /dev/vda /mnt || echo "guest: error of the file system"
    case $part in
    fsx) fsx -N 3000 -S 1 /mnt/file >/fsx 2>&1 ;;
    fsstress) mkdir /mnt/stress && fsstress -d /mnt/stress -n 800 -p 2 -s 1 >/dev/null ;;
    esac
    result=$?
    if [ $result != 0 ]; then tail -n 20 /fsx; fi
    echo "guest: $part $result"
    umount /mnt || echo "guest: error of the end"
    ;;
nbd)
    # An export whose client is this kernel.
    $b insmod /nbd.ko max_part=0
    $b --install -s /bin
    export PATH=/bin LD_LIBRARY_PATH=/lib
    mkdir -p /mnt /run /tmp
    mount -t tmpfs none /tmp
    cd /tmp
    xgvmi-blk create a b c --size 64M
    xgvmi-blk export a b c --socket socket &
    export=$!
    for wait in $(seq 1 100); do if [ -S socket ]; then break; fi; sleep 0.1; done
    nbd-client -unix $PWD/socket /dev/nbd0 -nonetlink -block-size 4096 || echo "guest: error of nbd-client"
    mkfs.ext4 -q -F /dev/nbd0 && mount -t ext4 -o discard /dev/nbd0 /mnt || echo "guest: error of the file system"
    fsx -N 1000 -S 2 /mnt/file >/fsx 2>&1
    result=$?
    if [ $result != 0 ]; then tail -n 20 /fsx; fi
    echo "guest: fsx $result"
    cp /bin/busybox /mnt/copy && sync
    umount /mnt || echo "guest: error of the end"
    e2fsck -f -n /dev/nbd0 >/dev/null 2>&1
    echo "guest: e2fsck $?"
    nbd-client -d /dev/nbd0
    kill $export
    wait $export
    xgvmi-blk scrub a b c
    xgvmi-blk export a b --socket again &
    export=$!
    for wait in $(seq 1 100); do if [ -S again ]; then break; fi; sleep 0.1; done
    nbd-client -unix $PWD/again /dev/nbd0 -nonetlink -block-size 4096 && mount -o ro -t ext4 /dev/nbd0 /mnt
    cmp /bin/busybox /mnt/copy && echo "guest: copies are equal"
    umount /mnt
    nbd-client -d /dev/nbd0
    kill $export
    ;;
crash)
    # Power losses of disks in this guest, or a log of what is written. The device mapper's library makes the nodes itself.
    for module in loop dm-mod dm-flakey dm-log-writes; do
        if [ -e /$module.ko ]; then $b insmod /$module.ko; fi
    done
    $b --install -s /bin
    export PATH=/bin LD_LIBRARY_PATH=/lib DM_DISABLE_UDEV=1
    mkdir -p /tmp /run
    mount -t tmpfs none /tmp
    ip link set lo up
    storage-crash /bin/xgvmi-blk /tmp $rounds 1 $logged 2>&1
    ;;
esac
echo "guest: done"
$b poweroff -f
