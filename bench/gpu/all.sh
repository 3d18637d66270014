#!/usr/bin/env bash
# On a machine with one GPU: build for it, check the machine code, run the GPU tests, watch small sizes with
# compute-sanitizer, and measure. Within ten minutes; without network, where python3 has numpy, ml_dtypes, typer, rich,
# scikit-build-core, pybind11, cmake, ninja, pytest and pytest-timeout (and torch, cupy and NCCL, to be compared with).
#
#   bench/gpu/all.sh [FOLDER]      FOLDER: for gpu.json, summary.txt and a log a step; build/gpu if not given
#
# PYTHON: the interpreter.  PYCOLLECTIVE_NCCL: an NCCL of 2.30 or newer.  PYCOLLECTIVE_COMMIT: where git is not.
# The exit status is 0 if every step went well. A step that fails does not keep the later ones from running.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

SECONDS=0
LIMIT=590
python=${PYTHON:-python3}
mkdir -p "${1:-build/gpu}"
out=$(cd "${1:-build/gpu}" && pwd)
site=$out/site
failed=()
export PYCOLLECTIVE_COMMIT=${PYCOLLECTIVE_COMMIT:-$(git rev-parse HEAD 2>/dev/null)}
: >"$out/summary.txt"

# step NAME SECONDS COMMAND...: run it within its time and within what is left; its output goes to NAME.log.
step() {
  local name=$1 most=$2 begin=$SECONDS left=$((LIMIT - SECONDS)) status
  shift 2
  ((most > left)) && most=$left
  if ((most < 5)); then
    status="no time left"
  else
    timeout --kill-after=5 "$most" "$@" >"$out/$name.log" 2>&1
    status=$?
    ((status == 124 || status == 137)) && status="not through within $most s"
  fi
  [[ $status == 0 ]] || failed+=("$name")
  printf '%-10s %4d s  %s\n' "$name" $((SECONDS - begin)) "$([[ $status == 0 ]] && echo ok || echo "FAILED: $status")" |
    tee -a "$out/summary.txt"
  [[ $status == 0 ]] || tail -25 "$out/$name.log"
}

# Outside the source tree, so that what was built is what is imported.
away() { (cd "$out" && PYTHONPATH=$site "$@"); }
export -f away
export out site

capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
if [[ -z $capability ]]; then
  echo "no NVIDIA GPU: nvidia-smi names none" >&2
  exit 1
fi

rm -rf "$site"
step build 180 "$python" -m pip install --disable-pip-version-check --no-index --no-deps --no-build-isolation \
  --target "$site" -C cmake.define.PC_CUDA=ON -C "cmake.define.PC_CUDA_ARCHITECTURES=$capability-real" .
if [[ ${#failed[@]} == 0 ]]; then
  step sass 60 "$python" tools/sass.py "$site"/pycollective/_cuda*.so
  # Skipping everything is no success.
  PYTHONPATH=$site step tests 240 bash -c '"$@" | tee /dev/stderr | tail -1 | grep -q passed && [ "${PIPESTATUS[0]}" = 0 ]' \
    - "$python" -P -m pytest tests/gpu -m gpu -q -p no:cacheprovider
  for tool in memcheck racecheck; do
    step $tool 60 bash -c 'away "$@"' - compute-sanitizer --tool $tool --error-exitcode 9 \
      "$python" -P -m pycollective.bench.gpu.small
  done
  step measure $LIMIT bash -c 'away "$@"' - "$python" -P -m pycollective.bench.gpu \
    --seconds $((LIMIT - SECONDS - 15)) --output "$out/gpu.json"
  tail -400 "$out/measure.log"
  tail -3 "$out/tests.log"
fi
cat "$out/summary.txt"
echo "$SECONDS s in all"
exit $((${#failed[@]} > 0))
