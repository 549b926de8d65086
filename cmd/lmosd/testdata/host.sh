# Makes the file system of a host in $ROOT and runs its shell: the programs of busybox, Python with its libraries, and lmosd, nothing else.
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 root "$ROOT"
cd "$ROOT"
mkdir -p bin usr/bin usr/lib lib lib64 proc dev tmp root etc/ssl var/lib run
chmod 1777 tmp
busybox=$(command -v busybox)
cp "$busybox" bin/busybox
chroot . /bin/busybox --install -s /bin
shared() { mkdir -p ".$1" && mount --bind "$1" ".$1" && mount -o remount,ro,bind ".$1"; }
for d in /lib/x86_64-linux-gnu /lib/aarch64-linux-gnu /lib64 /usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib/python3*; do
  if [ -d "$d" ] && ! mountpoint -q ".$d"; then shared "$d"; fi
done
cp -L /usr/bin/python3 usr/bin/python3
printf 'root:x:0:0:root:/root:/bin/sh\n' >etc/passwd
printf '127.0.0.1 localhost\n' >etc/hosts
for f in null zero urandom random; do
  : >dev/$f && mount --bind /dev/$f dev/$f
done
mount -t proc proc proc
if [ -n "$PACKAGE" ]; then
  dpkg-deb -x "$PACKAGE" .
else
  cp -L "$PROGRAM" usr/bin/lmosd
fi
hostname "$NAME"
ip link set lo up
exec chroot . /bin/busybox env -i PATH=/usr/bin:/bin HOME=/root USER=root LANG=C.UTF-8 LMOSD_FORCE_TTY=80 NO_COLOR=1 GORACE="$GORACE" /bin/sh -c "cd && exec sh"
