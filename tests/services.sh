#!/usr/bin/env bash
# Installs the Debian packages that tests start by themselves, if they are missing and can be had. A test whose service is absent skips with its reason.
set -u
declare -A command=([redis-server]=redis-server [prometheus]=promtool [chromium]=chromium [fonts-dejavu-core]=fc-list [nginx-light]=nginx [etcd-server]=etcd [openssl]=openssl)
missing=()
for package in "$@"; do
    command -v "${command[$package]}" >/dev/null || [ -x "/usr/sbin/${command[$package]}" ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "not installed, their tests skip: ${missing[*]}" >&2
    exit 0
fi
echo "installing ${missing[*]} ..."
# The packages' own services stay off: tests start what they need on ports of their own.
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d.ferrule && chmod +x /usr/sbin/policy-rc.d.ferrule
[ -e /usr/sbin/policy-rc.d ] || ln -s /usr/sbin/policy-rc.d.ferrule /usr/sbin/policy-rc.d
apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
status=$?
[ "$(readlink /usr/sbin/policy-rc.d 2>/dev/null)" = /usr/sbin/policy-rc.d.ferrule ] && rm /usr/sbin/policy-rc.d
rm -f /usr/sbin/policy-rc.d.ferrule
[ $status -eq 0 ] || echo "could not install ${missing[*]}; their tests skip" >&2
exit 0
