#!/usr/bin/env bash
# Makes .venv, installs the project into it, fetches the default model and lets the doctor look at the result.
#   .ci/setup.sh [EXTRA...]     extras of pyproject.toml; default: dev
# Quick when nothing changed. Every refusal is one line that names the remedy.
# PYTHON=... chooses an interpreter. SKIP_DOCTOR=1 leaves the doctor out when nothing had to be installed.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

venv=.venv
log=$venv/setup.log
stamp=$venv/setup.stamp
needed_mib=6144
wanted=("${@:-dev}")

# -- Python: 3.11 first; 3.12 and 3.13 are accepted with a notice -----------------------------------------------------
probe='import ensurepip, sys, venv; print("%d.%d" % sys.version_info[:2])'

find_python() {
  local wanted candidate path
  for wanted in 3.11 3.12 3.13; do
    for candidate in ${PYTHON:+"$PYTHON"} "python$wanted" python3 python "$HOME/.pyenv/versions/$wanted".*/bin/python; do
      path=$(command -v "$candidate" 2>/dev/null) || continue
      if [ "$("$path" -c "$probe" 2>/dev/null)" = "$wanted" ]; then
        echo "$wanted $path"
        return
      fi
    done
  done
  return 1
}

explain_no_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      die "$candidate cannot make environments: install its venv package (Debian and Ubuntu: apt install $(basename "$candidate")-venv), then run this again"
    fi
  done
  die "Python 3.11 was not found (found: $(python3 -V 2>/dev/null || echo none)): install it, or name one with PYTHON=/path/to/python3.11 make setup"
}

sha() { "$1" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'; }

fingerprint() { # of everything that decides what is installed; the folder too, as an editable install names it
  { cat pyproject.toml .ci/constraints*.txt .ci/setup.sh; pwd; "$venv/bin/python" -V; } | sha "$venv/bin/python"
}

up_to_date() { # the stamp: a line with the fingerprint, then a line for each extra that is installed
  local extra
  [ -x $venv/bin/python ] && "$venv/bin/python" -c pass 2>/dev/null && [ -f $stamp ] || return 1
  grep -qxF "$(fingerprint)" $stamp || return 1
  for extra in "${wanted[@]}"; do grep -qxF "$extra" $stamp || return 1; done
}

# -- pip, with its output in a log and its failures in a line ---------------------------------------------------------
pip_install() {
  local what=$1
  shift
  say "installing $what; progress: tail -f $log"
  # Without --no-compile pip would compile some ten thousand files of which few are ever imported.
  if ! "$venv/bin/python" -m pip install --disable-pip-version-check --no-compile "$@" >>"$log" 2>&1; then
    if grep -qE 'No space left|Errno 28' "$log"; then
      die "the disk filled up while installing $what: free at least 6 GB and run this again (log: $log)"
    fi
    if grep -qE 'NewConnectionError|NameResolution|ConnectTimeout|ReadTimeout|ProxyError|Connection (refused|reset)|Max retries' "$log"; then
      die "no network: pip could not reach its package index for $what; connect, or set PIP_INDEX_URL or HTTPS_PROXY, then run this again (log: $log)"
    fi
    die "pip could not install $what: $(grep -m1 '^ERROR' "$log" || tail -n 1 "$log") (log: $log)"
  fi
}

install() {
  local found version python free
  if [ -d $venv ] && ! { [ -x $venv/bin/python ] && "$venv/bin/python" -c pass 2>/dev/null; }; then
    say "the interpreter of $venv is gone: making a new environment"
    rm -rf $venv
  fi
  if [ ! -d $venv ]; then
    found=$(find_python) || explain_no_python
    version=${found%% *} python=${found#* }
    [ "$version" = 3.11 ] || say "note: Python $version is untested here (3.11 is the tested one); going on with $python"
    free=$(df -Pm . | awk 'NR == 2 { print $4 }')
    [ "$free" -ge $needed_mib ] ||
      die "only $free MiB are free on this disk and the environment needs $needed_mib MiB: free some space and run this again"
    say "making $venv with $python"
    "$python" -m venv $venv || die "$python could not make $venv: install its venv package, or name another with PYTHON=..."
  fi
  : >$log
  # Extras that are there already stay, so that two targets do not undo each other.
  local all
  all=$({ printf '%s\n' "${wanted[@]}"; [ ! -f $stamp ] || sed 1d $stamp; } | sort -u)
  # torch first and alone: what it is decides whether Triton is pinned.
  pip_install "torch (the largest download)" -c .ci/constraints-cuda.txt torch
  local kind
  kind=$("$venv/bin/python" -c 'import torch; print("cpu" if torch.version.cuda is None else "cuda")' 2>>"$log") ||
    die "torch was installed but cannot be imported: $(tail -n 1 "$log") (log: $log)"
  say "torch is a $kind build: $([ "$kind" = cpu ] && echo "Triton is pinned to the tested interpreter" || echo "its own Triton stays")"
  pip_install "the project and its tools" -c .ci/constraints.txt -c ".ci/constraints-$kind.txt" -e ".[${all//$'\n'/,}]"
  { fingerprint; echo "$all"; } >"$stamp.new"
  mv "$stamp.new" $stamp
}

installed=0
if ! up_to_date; then
  install
  installed=1
fi

"$venv/bin/workbench" model fetch ||
  die "the default model could not be fetched: read the line above, then run this again"

if [ $installed = 1 ] || [ -z "${SKIP_DOCTOR:-}" ]; then
  "$venv/bin/workbench" doctor || die "the doctor found something that has to be mended first"
fi
