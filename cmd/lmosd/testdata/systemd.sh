# Starts systemd as process 1 of namespaces of its own in $ROOT, and runs a shell there. The host has the programs of this machine, in
# an overlay that takes what is written, and empty folders else. At the end of its input, the shell ends; then everything ends and goes.
set -e
if [ -z "$INSIDE" ]; then
  mount --make-rprivate /
  cgroups=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/self/mounts)
  own=$cgroups/lmosd-test-$$
  mkdir "$own"
  (echo 0 >"$own/cgroup.procs" && INSIDE=1 exec unshare --mount --pid --fork --kill-child --cgroup --net --ipc --uts sh -c "$SCRIPT") </dev/null &
  outer=$!
  remove() {
    kill -9 $outer 2>/dev/null || true
    wait $outer 2>/dev/null || true
    for _ in 1 2 3 4 5 6 7 8 9 10; do # until the kernel has removed the processes
      find "$own" -depth -type d -exec rmdir {} + 2>/dev/null && break
      sleep 0.2
    done
  }
  trap remove EXIT
  init=
  inside() { nsenter --all --target "$init" env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin HOME=/root USER=root LANG=C.UTF-8 LMOSD_FORCE_TTY=80 NO_COLOR=1 GORACE="$GORACE" "$@"; }
  left=600 # a systemd that cannot start may wait for ever
  until [ -n "$init" ] && inside test -S /run/systemd/private 2>/dev/null; do
    kill -0 $outer
    left=$((left - 1))
    [ $left -gt 0 ]
    init=$(cat /proc/$outer/task/$outer/children)
    init=${init% }
    sleep 0.1
  done
  inside systemctl is-system-running --wait >/dev/null || inside systemctl --failed --no-legend
  inside sh -c "cd && exec sh" || true
  exit
fi

mount -t tmpfs -o mode=755 root "$ROOT"
cd "$ROOT"
mkdir -p usr etc/systemd/system proc sys dev run tmp old root var/lib/dpkg/info var/lib/dpkg/updates var/lib/dpkg/triggers var/log .overlay/upper .overlay/work
chmod 1777 tmp
chmod 700 root
for d in bin sbin lib lib64; do ln -s usr/$d $d; done
mount -t overlay -o "lowerdir=/usr,upperdir=$ROOT/.overlay/upper,workdir=$ROOT/.overlay/work" overlay usr
: >var/lib/dpkg/status
printf 'root:x:0:0:root:/root:/bin/sh\nmessagebus:x:100:100::/nonexistent:/usr/sbin/nologin\nana:x:1000:1000::/home/ana:/bin/sh\n' >etc/passwd
printf 'root:x:0:\nmessagebus:x:100:\nana:x:1000:\n' >etc/group
printf 'passwd: files\ngroup: files\nhosts: files\n' >etc/nsswitch.conf
printf '127.0.0.1 localhost\n' >etc/hosts
printf '0123456789abcdef0123456789abcdef\n' >etc/machine-id
for unit in systemd-journald-audit.socket systemd-logind.service systemd-sysusers.service systemd-tmpfiles-setup.service systemd-tmpfiles-setup-dev.service \
  systemd-tmpfiles-clean.timer systemd-network-generator.service systemd-update-utmp.service getty.target console-getty.service polkit.service; do
  ln -s /dev/null etc/systemd/system/$unit
done
mkdir -p usr/local/bin # that of this machine is hidden
cp "$PROGRAM" root/lmosd
mkdir root/new
cp "$PROGRAM" root/new/lmosd
[ -z "$PACKAGE" ] || cp "$PACKAGE" root/lmosd.deb
cat >usr/local/bin/sudo <<'SUDO'
#!/bin/sh
[ "$1" != -u ] || exec setpriv --reuid "$2" --regid "$2" --clear-groups -- sh -c 'shift 2; exec "$@"' sudo "$@"
exec "$@"
SUDO
chmod 755 usr/local/bin/sudo
mount -t proc proc proc
for f in proc/sys proc/sysrq-trigger; do
  [ -e $f ] || continue
  mount --bind $f $f
  mount -o remount,ro,bind $f
done
mount -t sysfs -o ro sysfs sys
mount -t tmpfs cgroup sys/fs/cgroup 2>/dev/null || true # covers the folders of the first version
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 dev dev
mkdir dev/pts dev/shm
for f in null zero urandom random full tty; do
  : >dev/$f && mount --bind /dev/$f dev/$f
done
: >dev/console
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount -t tmpfs -o mode=755 run run
hostname server
ip link set lo up
pivot_root . old
umount -l /old
mount --make-rshared / # systemd does this itself where it is not in a container
exec env -i container=test setpriv --bounding-set -sys_time,-sys_module,-sys_rawio,-syslog,-audit_control,-audit_read \
  /usr/lib/systemd/systemd --system --unit=multi-user.target --show-status=no
