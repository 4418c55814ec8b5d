#!/usr/bin/env bash
# Makes .triton36: Triton 3.6.0 and a numpy that suits it, before the packages of .venv (torch, pytest, …) on the path.
# So nothing large is fetched twice, and .venv stays as it is. Quick when nothing changed.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { printf 'triton36: %s\n' "$*" >&2; exit 1; }

main=.venv/bin/python
there=.triton36
wanted=.ci/triton36.txt
needed_mib=1536

[ -x $main ] || die "there is no .venv yet: make setup first"
packages=$($main -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
state=$({ cat $wanted .ci/triton36.sh; echo "$packages"; $main -V; } | cksum)
if [ -x $there/bin/python ] && [ "$(cat $there/stamp 2>/dev/null)" = "$state" ]; then exit 0; fi

free=$(df -Pm . | awk 'NR == 2 { print $4 }')
[ "$free" -ge $needed_mib ] ||
  die "only $free MiB are free on this disk and Triton 3.6 needs $needed_mib MiB: free some space and run this again"
echo "triton36: installing $(grep -v '^#' $wanted | paste -sd ' ') into $there"
rm -rf $there
$main -m venv --without-pip $there || die "$main could not make $there"
# pip of .venv, looking only at the new environment: had that seen .venv's packages already, it would take theirs away.
$main -m pip --python $there/bin/python install --disable-pip-version-check --no-compile --no-deps -r $wanted \
  >$there/install.log 2>&1 || die "$(grep -m1 '^ERROR' $there/install.log || tail -n 1 $there/install.log) (log: $there/install.log)"
own=$($there/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
# A path file adds to the end of the path, so what is installed here comes first.
echo "$packages" >"$own/beside.pth"
$there/bin/python -c 'import numpy, torch, triton; assert triton.__version__ == "3.6.0", triton.__version__' \
  2>>$there/install.log || die "torch and Triton 3.6.0 cannot be imported together: $(tail -n 1 $there/install.log)"
echo "$state" >$there/stamp
