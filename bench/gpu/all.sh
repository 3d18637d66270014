#!/usr/bin/env bash
# On a machine with one GPU: build for it, check the machine code, run the GPU tests, watch small sizes with
# compute-sanitizer, measure, and look into one kernel. Within ten minutes; without network, where python3 has numpy,
# ml_dtypes, typer, rich, scikit-build-core, pybind11, cmake, ninja, pytest, pytest-timeout and pytest-xdist (and torch,
# cupy and NCCL, to be compared with).
#
#   bench/gpu/all.sh [FOLDER [STEP...]]
#
# FOLDER: for gpu.json, summary.txt and log.txt, which holds what every step has said; build/gpu if not given.
# STEP: build sass tests memcheck racecheck measure profile, all of them if none is given; or tuning, by its name alone.
# What was built stays in build/gpu-site and is built anew where the sources are newer.
#
# PYTHON: the interpreter.  JOBS: processes that share the tests (4).  TESTS: further words for pytest.
# PYCOLLECTIVE_NCCL: an NCCL of 2.30 or newer.  PYCOLLECTIVE_COMMIT: where git is not.
# The exit status is 0 if every step went well. A step that fails does not keep the later ones from running.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

SECONDS=0
LIMIT=590
python=${PYTHON:-python3}
mkdir -p "${1:-build/gpu}" build/gpu-site
out=$(cd "${1:-build/gpu}" && pwd)
site=$PWD/build/gpu-site
steps=" ${*:2} "
[[ $# -gt 1 ]] || steps=" build sass tests memcheck racecheck measure profile "
failed=()
export PATH=$PATH:/usr/local/cuda/bin
export PYCOLLECTIVE_COMMIT=${PYCOLLECTIVE_COMMIT:-$(git rev-parse HEAD 2>/dev/null)}
: >"$out/summary.txt"
: >"$out/log.txt"

wanted() { [[ $steps == *" $1 "* ]]; }

# step NAME SECONDS COMMAND...: run it within its time and within what is left; its output goes to log.txt.
step() {
  local name=$1 most=$2 begin=$SECONDS left=$((LIMIT - SECONDS)) status log
  shift 2
  wanted "$name" || return 0
  log=$(mktemp)
  ((most > left)) && most=$left
  if ((most < 5)); then
    status="no time left"
  else
    timeout --kill-after=5 "$most" "$@" >"$log" 2>&1
    status=$?
    ((status == 124 || status == 137)) && status="not through within $most s"
  fi
  [[ $status == 0 ]] || failed+=("$name")
  printf '%-10s %4d s  %s\n' "$name" $((SECONDS - begin)) "$([[ $status == 0 ]] && echo ok || echo "FAILED: $status")" |
    tee -a "$out/summary.txt"
  { echo "===== $name"; cat "$log"; } >>"$out/log.txt"
  if [[ $status != 0 ]]; then tail -40 "$log"; else tail "-$([[ $name == measure ]] && echo 60 || echo 3)" "$log"; fi
  rm -f "$log"
}

# Outside the source tree, so that what was built is what is imported.
away() { (cd "$out" && PYTHONPATH=$site "$@"); }
# pytest, where skipping everything is no success.
tests() {
  PYTHONPATH=$site "$@" | tee -a /dev/stderr | tail -1 | grep -q passed && [[ ${PIPESTATUS[0]} == 0 ]]
}
build() {
  [[ -e $site/.built && -z $(find pyproject.toml CMakeLists.txt cmake csrc pycollective bench -newer "$site/.built" -type f) ]] && return
  rm -rf "$site"
  "$@" && touch "$site/.built"
}
export -f away tests build
export out site

capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
if [[ -z $capability ]]; then
  echo "no NVIDIA GPU: nvidia-smi names none" >&2
  exit 1
fi
shared=()
"$python" -c 'import xdist' 2>/dev/null && shared=(-n "${JOBS:-4}" --dist loadfile)

# Then the version is what pyproject.toml has for want of a tag.
"$python" -c 'import setuptools_scm' 2>/dev/null || export PC_NO_SCM=1

step build 240 bash -c 'build "$@"' - "$python" -m pip install --disable-pip-version-check --no-index --no-deps \
  --no-build-isolation --target "$site" -C cmake.define.PC_CUDA=ON \
  -C "cmake.define.PC_CUDA_ARCHITECTURES=$capability-real" .
if [[ -e $site/.built ]]; then
  step sass 60 "$python" tools/sass.py "$site"/pycollective/_cuda*.so
  # shellcheck disable=SC2086  # TESTS are words
  step tests 420 bash -c 'tests "$@"' - "$python" -P -m pytest tests/gpu -m gpu -v --durations=25 -p no:cacheprovider \
    "${shared[@]}" ${TESTS:-}
  for tool in memcheck racecheck; do
    step $tool 60 bash -c 'away "$@"' - compute-sanitizer --tool $tool --error-exitcode 9 \
      "$python" -P -m pycollective.bench.gpu.small
  done
  left=$((LIMIT - SECONDS - 15))
  wanted profile && ((left -= 60))
  step measure $LIMIT bash -c 'away "$@"' - "$python" -P -m pycollective.bench.gpu --seconds $left \
    --output "$out/gpu.json"
  step tuning $LIMIT bash -c 'away "$@"' - "$python" -P -m pycollective.bench.gpu --part tuning \
    --seconds $((LIMIT - SECONDS - 15)) --output "$out/tuning.json"
  step profile 60 bash -c 'away "$@"' - ncu --clock-control none --set detailed --launch-skip 3 --launch-count 1 \
    --kernel-name regex:run_ "$python" -P -m pycollective.bench.gpu.once
elif ! wanted build; then
  echo "nothing is built: ask for the step build, too" | tee -a "$out/summary.txt"
  failed+=(build)
fi
cat "$out/summary.txt"
echo "$SECONDS s in all"
exit $((${#failed[@]} > 0))
