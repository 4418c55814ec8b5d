#!/usr/bin/env bash
# Gives the browser tests a Chromium where that needs no question to anyone: Debian's package, when run as root.
# Where there is none the tests skip and say so; this never fails.
set -u
for name in chromium chromium-browser google-chrome; do
  command -v $name >/dev/null 2>&1 && exit 0
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  echo "browser: installing Chromium from the system's packages"
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
    >/dev/null 2>&1 && exit 0
fi
echo "browser: no Chromium here and no right to install it: the browser tests will skip"
