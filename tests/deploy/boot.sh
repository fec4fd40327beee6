#!/bin/bash
# boot.sh ROOTFS NAME: systemd as process 1 of its own namespaces, with control groups of its own.
# NETWORK=shared: with the network of this machine instead of one of its own.
# For machines with the hybrid layout of control groups (v1 controllers and an empty v2 tree).
set -e
R=$(realpath "$1"); N=$2; C=/sys/fs/cgroup; export R
for c in systemd memory pids devices unified; do mkdir -p $C/$c/$N; echo $$ > $C/$c/$N/cgroup.procs; done
NET=--net; [ "${NETWORK:-own}" = own ] || NET=
exec unshare --mount --propagation private --pid --kill-child=KILL --fork --uts --ipc $NET --cgroup bash -c '
set -e
ip link set lo up
mount --bind $R $R; cd $R
mount -t proc -o nosuid,nodev,noexec proc proc
mount --bind proc/sys proc/sys; mount -o remount,bind,ro,nosuid,nodev,noexec proc/sys
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup; cd sys/fs/cgroup; mkdir systemd memory pids devices unified
mount -t cgroup -o none,name=systemd cgroup systemd; mount -t cgroup2 cgroup2 unified
for c in memory pids devices; do mount -t cgroup -o $c cgroup $c; done
cd $R
mount -o remount,ro sys/fs/cgroup   # else the inner systemd mounts further controllers of the host itself
mount -t tmpfs -o mode=755 tmpfs dev
for n in null zero full random urandom tty; do touch dev/$n; mount --bind /dev/$n dev/$n; done
mkdir dev/pts dev/shm; mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx; mount -t tmpfs tmpfs dev/shm; ln -s /proc/self/fd dev/fd
for i in stdin:0 stdout:1 stderr:2; do ln -s /proc/self/fd/${i#*:} dev/${i%:*}; done
mount -t tmpfs -o mode=755 tmpfs run; mount -t tmpfs -o mode=1777 tmpfs tmp
mkdir -p run/old; pivot_root . run/old; cd /; umount -l /run/old; rmdir /run/old
mount --make-rshared /              # else LoadCredential= silently gives an empty folder
exec env -i container=squidbot-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    systemd.unified_cgroup_hierarchy=0 SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1 /sbin/init systemd.unified_cgroup_hierarchy=0'
