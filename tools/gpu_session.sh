#!/usr/bin/env bash
# Runs the parts that need a real GPU, as many as fit into one call: build, contract, tests,
# benchmarks, demo.
#
#   tools/gpu_session.sh [PART ...]     parts: build contract tests
#                                       hit_path observing sharing training demo
#                                       scattered near_full graphs situations compiled frontier ranks
#
# `ranks` needs two GPUs. Without arguments it runs all but the last seven, which would write too
# many files. `tests` takes nearly the whole time; `frontier` and `near_full` take more than that
# for all workloads: WORKLOADS="conv moe" selects the workloads of these two and of `training`.
# It stops after $BUDGET seconds (default 570): later parts get the remaining time, or are skipped.
# Logs and results go to $OUT (default: gpu-out), at most eight plain files. A part that fails or
# runs out of time does not stop the next; the summary comes last, and the exit status is 1 if any
# part failed. PYTHON names the interpreter whose torch is used.
set -u
cd "$(dirname "$0")/.." || exit 1

PYTHON=${PYTHON:-python3}
OUT=${OUT:-$PWD/gpu-out}
mkdir -p "$OUT"
export PYTHONUNBUFFERED=1 PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" COLUMNS=140
export MAX_JOBS=${MAX_JOBS:-$(nproc)}
PATH="$(dirname "$("$PYTHON" -c 'import sys; print(sys.executable)')"):$PATH"
TREE=${TMPDIR:-/tmp}/ferro-gpu-session
LOG=$OUT/session.log
: >"$LOG"

DEADLINE=$(($(date +%s) + ${BUDGET:-570}))
summary=()
failed=0

# part NAME SECONDS COMMAND...: runs the command with a time limit, all output to the log and the
# end of it to the terminal.
part() {
  local name=$1 limit=$2 started ended code verdict
  shift 2
  started=$(date +%s)
  printf '\n==== %s\n' "$name" | tee -a "$LOG"
  if [ $((DEADLINE - started)) -lt "$limit" ]; then
    limit=$((DEADLINE - started))
  fi
  if [ "$limit" -lt 10 ]; then
    failed=1
    summary+=("$(printf '%-10s left out: no time' "$name")")
    return
  fi
  timeout --kill-after=5 "$limit" "$@" >"$TREE.part" 2>&1
  code=$?
  ended=$(date +%s)
  cat "$TREE.part" >>"$LOG"
  tail -n 40 "$TREE.part"
  case $code in
    0) verdict=ok ;;
    124 | 137) verdict="ran out of time" failed=1 ;;
    *) verdict="FAILED ($code)" failed=1 ;;
  esac
  summary+=("$(printf '%-10s %-16s %4d s' "$name" "$verdict" $((ended - started)))")
}

build() {
  "$PYTHON" setup.py build_ext --inplace &&
    "$PYTHON" -c 'import ferro_alloc; ferro_alloc.install(); print(ferro_alloc.status())'
}

contract() {
  cmake -S . -B "$TREE" -GNinja -DCMAKE_BUILD_TYPE=Release &&
    cmake --build "$TREE" --target contract_runner -j "$MAX_JOBS" &&
    "$TREE/tests/cpp/contract_runner"
}

tests() {
  # The contract and the demo are separate parts here.
  "$PYTHON" -m pytest -p no:cacheprovider -q -m gpu --durations=15 --continue-on-collection-errors tests/python \
    --deselect tests/python/gpu/test_gpu_contract.py --deselect tests/python/clients/test_demo.py
}

# benchmark MODULE ARGUMENTS...: the result file has the name of the last part of the module.
benchmark() {
  local module=$1
  shift
  "$PYTHON" -m "benchmarks.$module" --output "$OUT/${module##*.}.json" "$@"
}

demo() {
  "$PYTHON" -m benchmarks.demo --picture "$OUT/demo.png" "$@" &&
    cp demo-out/results.json "$OUT/demo.json"
}

export -f build contract tests benchmark demo
export PYTHON OUT TREE WORKLOADS=${WORKLOADS:-}

parts=("$@")
[ ${#parts[@]} -gt 0 ] || parts=(build contract tests hit_path observing sharing training demo)
command -v nvidia-smi >/dev/null && nvidia-smi -L | tee -a "$LOG"
for name in "${parts[@]}"; do
  case $name in
    build) part build 150 bash -c build ;;
    contract) part contract 90 bash -c contract ;;
    tests) part tests 540 bash -c tests ;;
    hit_path) part hit_path 90 bash -c 'benchmark latency.hit_path' ;;
    scattered) part scattered 60 bash -c 'benchmark latency.scattered' ;;
    observing) part observing 120 bash -c 'benchmark latency.observing' ;;
    ranks) part ranks 150 bash -c 'benchmark latency.ranks' ;;
    sharing) part sharing 120 bash -c 'benchmark latency.sharing' ;;
    training) part training 300 bash -c 'benchmark training ${WORKLOADS:+--workloads $WORKLOADS}' ;;
    graphs) part graphs 180 bash -c 'benchmark graphs' ;;
    situations) part situations 240 bash -c 'benchmark situations' ;;
    compiled) part compiled 300 bash -c 'benchmark graphs.compiled' ;;
    near_full) part near_full 300 bash -c 'benchmark frontier.near_full --allocators ferro_alloc ${WORKLOADS:+--workloads $WORKLOADS}' ;;
    frontier) part frontier 540 bash -c 'benchmark frontier --resolution 0.02 ${WORKLOADS:+--workloads $WORKLOADS}' ;;
    demo) part demo 120 bash -c demo ;;
    *)
      echo "there is no part '$name'" >&2
      failed=1
      ;;
  esac
done

printf '\n==== summary\n' | tee -a "$LOG"
printf '%s\n' "${summary[@]}" | tee -a "$LOG"
rm -f "$TREE.part"
exit $failed
