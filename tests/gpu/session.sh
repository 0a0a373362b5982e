#!/usr/bin/env bash
# What a machine with a GPU is asked, step by step: bash tests/gpu/session.sh OUT STEP ...; +STEP runs beside those after it
#
# Each step has its own time limit and log, OUT/STEP.log, and a failing one does not stop the others: the last line names
# those that failed, and the exit code is their number. Run files, reports and recordings come back in
# OUT/results-STEP.tar.gz. From the root of the repository; nothing needs to be installed but the dependencies. Steps, with
# what they take on an H200 with 16 cores (~: not measured): smoke 75 s, rest 44 s, features 70 s, tests 51 s, admit 160 s,
# tables 20 s, record ~280 s, truth 19 s, invariance 229 s (nearly all of it FA4's compiler: six or so kernels for each of
# 12 problems, that no other shares), compile 34 s, peers 80 s, fidelity 50 s, idle 131 s and loaded 145 s (19 cells each),
# release 103 s. `peers` and `invariance` find what docs/gpu.md says, and exit with 1.
set -u
out=$1
shift
mkdir -p "$out"
failed=$(mktemp)
export PYTHONUNBUFFERED=1
python=${PYTHON:-python3}

limit() { # seconds of each step
  case $1 in
    rest) echo 90 ;; smoke) echo 150 ;; features) echo 200 ;; tests) echo 120 ;; admit) echo 180 ;; tables) echo 120 ;; record) echo 400 ;;
    truth) echo 90 ;; invariance) echo 400 ;;
    compile) echo 120 ;; peers) echo 300 ;; fidelity) echo 150 ;; idle) echo 400 ;; loaded) echo 300 ;; release) echo 400 ;;
    *) echo 60 ;;
  esac
}

step() {
  local into=$2
  case $1 in
    smoke) $python -m tests.gpu.smoke devices fa4 sdpa standard truth functions exp2 faults ;;
    rest) $python -m tests.gpu.smoke functions exp2 faults ;; # of smoke
    features) $python -m tests.gpu.smoke flex fa4_features repeats invariance ;;
    # The plugin by hand: where the package is not installed it has no entry point, and pytest refuses its options.
    tests) nvidia-smi -L && $python -m pytest -q -m gpu tests/kernels/gpu -p no:cacheprovider $(plugin) ;;
    admit) $python -m fa4verify admit --device cuda:0 --json "$into/admission.json" ;;
    tables) $python -m tests.gpu.tables "$into" ;; # claims nothing, so that it may run beside another: +tables
    record) $python -m fa4verify record-device "$into/tables" --device cuda:0
      local code=$?
      rm -rf "$into/tables/compiled"
      return $code ;;
    truth) $python -m benchmarks.device64 cuda:0 ;;
    invariance) $python -m fa4verify invariance flash-attn-4 --device cuda:0 --json "$into/invariance.json" ;;
    compile) $python -c 'from fa4verify import kernels; kernels.compile_ahead(only={"standard", "fa4-sm90"})' ;;
    peers) $python -m fa4verify run peers --device cuda:0 --require-gpu --quiet --out "$into" ;;
    fidelity) $python -m fa4verify run fidelity --device cuda:0 --require-gpu --out "$into" ;;
    idle) $python -m fa4verify run determinism-gpu --device cuda:0 --workers 1 --select "not loaded" --out "$into" ;;
    loaded) $python -m fa4verify run determinism-gpu --device cuda:0 --workers 4 --select "loaded" --out "$into" ;;
    release) $python -m fa4verify run release --kernel flash-attn-4 --select kernel=fa4-sm90 --device cuda:0 --quiet --out "$into" ;;
    *) echo "no step $1"; return 2 ;;
  esac
}

plugin() {
  $python -c 'import importlib.metadata as m; m.version("fa4verify")' 2> /dev/null || echo -p fa4verify.pytest_plugin
}
export -f step plugin
export python

run() {
  local into started code
  into=$(mktemp -d)
  started=$SECONDS
  timeout --signal=INT --kill-after=20 "$(limit "$1")" bash -c "step $1 $into" > "$out/$1.log" 2>&1
  code=$?
  echo "== $1: exit code $code, $((SECONDS - started)) s"
  [ "$code" -eq 0 ] || echo "$1" >> "$failed"
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
echo "== failed: $(tr '\n' ' ' < "$failed")"
exit "$(wc -l < "$failed")"
