#!/usr/bin/env bash
# What a machine with a GPU is asked, step by step: bash tests/gpu/session.sh OUT STEP ...; +STEP runs beside those after it
#
# Each step has its own time limit and log, OUT/STEP.log, and a failing one does not stop the others. Run files, reports
# and recordings come back in OUT/results-STEP.tar.gz. From the root of the repository; nothing needs to be installed but
# the dependencies. Steps, with what they should take on an H200 with 16 cores: smoke 75 s, features 110 s, tests 60 s, admit 60 s,
# record 90 s, truth 40 s, invariance 90 s, compile 150 s, peers 200 s, fidelity 90 s, idle 150 s, loaded 60 s,
# release 300 s.
set -u
out=$1
shift
mkdir -p "$out"
export PYTHONUNBUFFERED=1
python=${PYTHON:-python3}

limit() { # seconds of each step
  case $1 in
    smoke) echo 150 ;; features) echo 200 ;; tests) echo 120 ;; admit) echo 150 ;; record) echo 200 ;; truth) echo 90 ;; invariance) echo 120 ;;
    compile) echo 300 ;; peers) echo 330 ;; fidelity) echo 200 ;; idle) echo 260 ;; loaded) echo 150 ;; release) echo 500 ;;
    *) echo 60 ;;
  esac
}

step() {
  local into=$2
  case $1 in
    smoke) $python -m tests.gpu.smoke devices fa4 sdpa standard truth functions exp2 faults ;;
    features) $python -m tests.gpu.smoke flex fa4_features repeats invariance ;;
    tests) $python -m pytest -q -m gpu tests/kernels/gpu -p no:cacheprovider ;;
    admit) $python -m fa4verify admit --device cuda:0 --json "$into/admission.json" ;;
    record) $python -m fa4verify record-device "$into/tables" --device cuda:0; rm -rf "$into/tables/compiled" ;;
    truth) $python -m benchmarks.device64 cuda:0 ;;
    invariance) $python -m fa4verify invariance flash-attn-4 --device cuda:0 --json "$into/invariance.json" ;;
    compile) $python -c 'from fa4verify import kernels; kernels.compile_ahead(only={"standard", "fa4-sm90"})' ;;
    peers) $python -m fa4verify run peers --device cuda:0 --require-gpu --quiet --out "$into" ;;
    fidelity) $python -m fa4verify run fidelity --device cuda:0 --require-gpu --out "$into" ;;
    idle) $python -m fa4verify run determinism-gpu --device cuda:0 --workers 1 --select "not loaded" --out "$into" ;;
    loaded) $python -m fa4verify run determinism-gpu --device cuda:0 --workers 4 --select "loaded" --out "$into" ;;
    release) $python -m fa4verify run release --kernel flash-attn-4 --device cuda:0 --quiet --out "$into" ;;
    *) echo "no step $1"; return 2 ;;
  esac
}
export -f step
export python

run() {
  local into started code
  into=$(mktemp -d)
  started=$SECONDS
  timeout --signal=INT --kill-after=20 "$(limit "$1")" bash -c "step $1 $into" > "$out/$1.log" 2>&1
  code=$?
  echo "== $1: exit code $code, $((SECONDS - started)) s"
  tail -n "${LINES_SHOWN:-25}" "$out/$1.log" | cut -c -240
  [ -n "$(ls -A "$into")" ] && tar -C "$into" -czf "$out/results-$1.tar.gz" .
}

for name in "$@"; do
  case $name in
    +*) run "${name#+}" & ;; # beside the others
    *) run "$name" ;;
  esac
done
wait
tar -C "$out" -czf "$out/logs.tar.gz" $(cd "$out" && ls ./*.log) && rm -f "$out"/*.log
