#!/usr/bin/env bash
# Finds or makes the Python environment that this checkout builds and runs in, and writes the path
# of its interpreter to build/python.
#
#  - $PYTHON, if it is set, is used as it is.
#  - With a reachable package index: .venv, with the versions of tools/requirements.txt.
#  - Without one: python3 as it is, if it has torch 2.11 to 2.15; nothing is installed.
#
# As root on a Debian machine, missing system packages are installed first.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build

# Nothing to do if the interpreter that an earlier call chose still exists.
if [ -z "${PYTHON:-}" ] && [ -s build/python ] && [ build/python -nt tools/requirements.txt ] &&
  [ build/python -nt tools/bootstrap.sh ] && [ -x "$(cat build/python)" ]; then
  exit 0
fi

say() { printf 'setup: %s\n' "$*" >&2; }

accept() {
  printf '%s\n' "$1" > build/python
  say "using $1"
  exit 0
}

has_torch() {
  "$1" -c 'import re, sys, torch
major, minor = re.findall(r"\d+", torch.__version__)[:2]
sys.exit(not (major == "2" and 11 <= int(minor) <= 15))' 2>/dev/null
}

# Missing Debian packages, each detected by a file or command that it contains.
missing_packages() {
  command -v g++ >/dev/null || echo g++
  command -v make >/dev/null || echo make
  command -v python3 >/dev/null || echo python3
  python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  python3 -c 'import os, sysconfig
assert os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null ||
    echo python3-dev
  [ -e /usr/include/gtest/gtest.h ] || echo libgtest-dev
  command -v clang++ >/dev/null || echo clang
  command -v clang-tidy >/dev/null || echo clang-tidy
  command -v clang-format >/dev/null || echo clang-format
  local runtime
  runtime=$(clang++ -print-file-name=libclang_rt.fuzzer-x86_64.a 2>/dev/null || true)
  # clang prints the bare name if it has no such file.
  case $runtime in
    /*) [ -e "$runtime" ] || echo libclang-rt-14-dev ;;
    *) echo libclang-rt-14-dev ;;
  esac
}

install_system_packages() {
  local missing
  missing=$(missing_packages | sort -u)
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing" $missing
    export DEBIAN_FRONTEND=noninteractive
    if apt-get update -qq >&2 && apt-get install -y -qq --no-install-recommends $missing >&2; then
      return 0
    fi
  fi
  say "not installed, so some tests may be skipped:" $missing
}

index_in_reach() {
  python3 -m pip download --quiet --disable-pip-version-check --no-deps \
    --timeout 10 --retries 0 --dest "$1" wheel==0.48.0 >/dev/null 2>&1
}

[ -z "${PYTHON:-}" ] || accept "$(command -v "$PYTHON")"

stamp=.venv/.ferro-requirements
if [ -x .venv/bin/python ] && cmp -s tools/requirements.txt "$stamp"; then
  accept "$PWD/.venv/bin/python"
fi

probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
if ! command -v python3 >/dev/null || ! python3 -m pip --version >/dev/null 2>&1; then
  install_system_packages
fi
if has_torch python3 && ! index_in_reach "$probe"; then
  say "no package index is reachable: nothing is installed"
  accept "$(python3 -c 'import sys; print(sys.executable)')"
fi

install_system_packages
[ -x .venv/bin/python ] || python3 -m venv .venv
say "installing tools/requirements.txt into .venv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check -r tools/requirements.txt >&2
cp tools/requirements.txt "$stamp"
accept "$PWD/.venv/bin/python"
