#!/usr/bin/env bash
# For a machine with one GPU, without network: separate runs of at most eight minutes, with a time limit for each
# step. The findings of a step are written immediately.
#
#   bench/gpu/all.sh FOLDER first|numbers|truth|tuning
#   bench/gpu/all.sh FOLDER STEP...
#
#   first    install attributes canary top memcheck  every topology once; the main goals at 8 ranks
#   numbers  install attributes measure nccl:16      small messages, copies, torch, staging, all topologies; NCCL
#   truth    install sass tests bits processes memcheck racecheck nccl:8 nccl:32       correctness
#   tuning   install tuning small profile overlap     tiles and channels; four kernels; a matrix product beside calls
#
# NCCL with several ranks on a GPU is experimental and may hang: it is last where it is. The number is of its CTAs.
#
# FOLDER: for JSON, summary.txt and log.txt, which has the output of every step. At most eight files.
# If build/gpu-carry has a wheel for this Python (bench/gpu/prepare.sh), it is installed into build/gpu-site, with
# those of the other wheels that are missing here; otherwise the package is built there for the GPU that is present.
#
# PYTHON: the interpreter. JOBS: processes that share the tests (4). TESTS, BENCH: further arguments for pytest and for
# the benchmark (BENCH=--tiny). LIMIT: seconds for everything (470).
# PYCOLLECTIVE_NCCL: an NCCL of 2.30 or newer; by default the one in build/gpu-carry. PYCOLLECTIVE_COMMIT: without git.
# PYTHONPATH is kept. The exit status is 0 if every step succeeded. Later steps run even if a step fails, except after
# the installation and the canary.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit

SECONDS=0
LIMIT=${LIMIT:-470}
python=${PYTHON:-python3}
carry=$PWD/build/gpu-carry
mkdir -p "${1:-build/gpu}" build/gpu-site
out=$(cd "${1:-build/gpu}" && pwd)
site=$PWD/build/gpu-site
case "${*:2}" in
  first) steps=" install attributes canary top memcheck " ;;
  numbers) steps=" install attributes measure nccl:16 " ;;
  truth) steps=" install sass tests bits processes memcheck racecheck nccl:8 nccl:32 " ;;
  tuning) steps=" install tuning small profile overlap " ;;
  "") echo "which run: first, numbers, truth or tuning? or steps by name" >&2; exit 2 ;;
  *) steps=" ${*:2} " ;;
esac
failed=()
export PATH=$PATH:/usr/local/cuda/bin
export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
export PYTHONUNBUFFERED=1
# Of the wheel rather than of this checkout.
export PYCOLLECTIVE_COMMIT=${PYCOLLECTIVE_COMMIT:-$(head -1 "$carry/commit" 2>/dev/null || git rev-parse HEAD 2>/dev/null)}
if [[ -z ${PYCOLLECTIVE_NCCL:-} && -e $carry/nccl/libnccl.so.2 ]]; then
  export PYCOLLECTIVE_NCCL=$carry/nccl/libnccl.so.2
fi
: >"$out/summary.txt"
: >"$out/log.txt"

# step NAME SECONDS COMMAND...: run it within its time limit and the time left; output goes to log.txt immediately.
step() {
  local name=$1 most=$2 begin=$SECONDS left=$((LIMIT - SECONDS)) status at
  shift 2
  [[ $steps == *" $name "* || $steps == *" ${name%%:*} "* ]] || return 0
  ((most > left)) && most=$left
  echo "===== $name" >>"$out/log.txt"
  at=$(wc -l <"$out/log.txt")
  if ((most < 5)); then
    status="no time left"
  else
    timeout --kill-after=5 "$most" "$@" >>"$out/log.txt" 2>&1
    status=$?
    ((status == 124 || status == 137)) && status="not completed within $most s"
  fi
  [[ $status == 0 ]] || failed+=("$name")
  printf '%-22s %4d s  %s\n' "$name" $((SECONDS - begin)) "$([[ $status == 0 ]] && echo ok || echo "FAILED: $status")" |
    tee -a "$out/summary.txt"
  tail -n "+$((at + 1))" "$out/log.txt" | tail "-$([[ $status == 0 ]] && echo 12 || echo 30)"
}

# Outside the source tree, so that the installed package is imported.
away() { (cd "$out" && exec "$python" -P "$@"); }
# pytest; skipping everything is a failure.
tests() { "$@" | tee -a /dev/stderr | tail -1 | grep -q passed && [[ ${PIPESTATUS[0]} == 0 ]]; }
# Its wheel, then those of the others that this Python lacks; or a build for the GPU that is present.
install() {
  local pip=("$python" -m pip install --disable-pip-version-check --quiet --no-index --no-deps --upgrade --target "$site")
  local tag wheels wheel name
  tag=$("$python" -c 'import sys; print(f"cp{sys.version_info[0]}{sys.version_info[1]}")')
  wheels=("$carry"/wheels/pycollective-*-"$tag"-*.whl)
  for wheel in "$carry"/wheels/*.whl; do
    name=$(basename "${wheel%%-*}")
    [[ $name == pycollective || ! -e $wheel ]] && continue
    "$python" - "$name" <<'PY' || wheels+=("$wheel")
import importlib.metadata as m, sys
m.distribution(sys.argv[1])
PY
  done 2>/dev/null
  # The machine's numba may be older than its NumPy.
  if "$python" -c "import numba" 2>&1 | grep -q "needs NumPy"; then
    for wheel in "$carry"/numpy/*.whl; do [[ -e $wheel ]] && wheels+=("$wheel"); done
  fi
  local import='import pycollective._core, pycollective._cuda as c; print(c.__file__, c.why_no_device())'
  if [[ -e ${wheels[0]} ]] && "${pip[@]}" "${wheels[@]}" && (cd / && "$python" -P -c "$import"); then return; fi
  echo "no wheel for this machine: building one"
  ((${#wheels[@]} > 1)) && "${pip[@]}" "${wheels[@]:1}"
  CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) "${pip[@]}" --no-build-isolation -C cmake.define.PC_CUDA=ON \
    -C "cmake.define.PC_CUDA_ARCHITECTURES=$capability-real" . && (cd / && "$python" -P -c "$import")
}
export -f away tests install

capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -1 | tr -d .)
if [[ -z $capability ]]; then
  echo "no NVIDIA GPU: nvidia-smi names none" >&2
  exit 1
fi
export capability carry out python site

# shellcheck disable=SC2206  # BENCH is words
bench=(bash -c 'away "$@"' - -m pycollective.bench.gpu ${BENCH:-})
step install 200 bash -c install
[[ " ${failed[*]} " == *" install "* ]] && exit 1
shared=()
"$python" -c 'import xdist' 2>/dev/null && shared=(-n "${JOBS:-4}" --dist loadfile)
if [[ ! -e $site/pycollective ]]; then
  echo "nothing is installed: ask for the step install, too" | tee -a "$out/summary.txt"
  failed+=(install)
fi
# Most likely failures on a device come first.
riskiest=(comm/test_{waiting_peers,virtual,calls,failures,windows,numerics,operators} test_device
  torch/test_{torch_cuda,c10d,hvd} engine/test_engine)
riskiest=("${riskiest[@]/#/tests/gpu/}")
step attributes 20 bash -c 'away "$@"' - -m pycollective.bench.gpu.attributes --output "$out/attributes.json"
step canary 60 bash -c 'away "$@"' - -m pycollective.bench.gpu.small
if [[ " ${failed[*]} " == *" canary "* ]]; then
  echo "the canary failed: nothing else is measured" | tee -a "$out/summary.txt"
  exit 1
fi
step top 130 "${bench[@]}" --part small --part sweep --ranks 8 --seconds 120 --output "$out/top.json"
step measure 300 "${bench[@]}" --part small --part copies --part torch --part staged --part sweep --seconds 290 \
  --output "$out/numbers.json"
step nccl:16 120 env NCCL_MAX_CTAS=16 "${bench[@]}" --part nccl --seconds 115 --output "$out/nccl-16.json"
step sass 20 "$python" tools/checks/sass.py "$site"/pycollective/_cuda*.so
# shellcheck disable=SC2086  # TESTS are words
step tests 200 bash -c 'tests "$@"' - "$python" -P -m pytest "${riskiest[@]/%/.py}" -m gpu -v \
  --durations=15 -p no:cacheprovider "${shared[@]}" ${TESTS:-}
step bits 40 "${bench[@]}" --part bits --ranks 8 --seconds 35 --output "$out/bits.json"
step processes 50 bash -c 'away "$@"' - -m pycollective run -n 8 "$python" -P -m pycollective.bench.gpu.processes
for tool in memcheck racecheck; do
  step $tool 45 bash -c 'cd "$out" && exec "$@"' - compute-sanitizer --tool $tool --error-exitcode 9 \
    "$python" -P -m pycollective.bench.gpu.small
done
for blocks in 8 32; do
  step nccl:$blocks 60 env NCCL_MAX_CTAS=$blocks "${bench[@]}" --part nccl --seconds 55 --output "$out/nccl-$blocks.json"
done
step tuning 190 "${bench[@]}" --part tuning --seconds 180 --output "$out/tuning.json"
step small 40 "${bench[@]}" --part small --ranks 8 --seconds 35 --output "$out/small.json"
for call in direct:33554432 ring:33554432 tree:33554432 direct:8192; do
  step profile:$call 40 bash -c 'cd "$out" && exec "$@"' - ncu --clock-control none --set detailed --launch-skip 3 \
    --launch-count 1 --kernel-name regex:run_ "$python" -P -m pycollective.bench.gpu.once \
    --topology "${call%:*}" --bytes "${call#*:}"
done
step overlap 60 bash -c 'away "$@"' - -m pycollective.bench.gpu.overlap --output "$out/overlap.json"
measured=("$out"/*.json)
[[ ! -e ${measured[0]} ]] || "${bench[@]}" --read "${measured[@]}"
cat "$out/summary.txt"
echo "$SECONDS s in all"
exit $((${#failed[@]} > 0))
