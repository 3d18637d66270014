#!/usr/bin/env bash
# Before GPU time: collects what a machine without network and with little time needs in build/gpu-carry (git-ignored).
#
#   bench/gpu/prepare.sh [PYTHON]
#
#   build/gpu-carry/wheels   pycollective for this Python with its GPU part for ARCHITECTURES only, and the dependencies
#                            of the package, its build and its GPU tests that a machine may lack
#   build/gpu-carry/numpy    a NumPy for a numba that does not support the machine's own
#   build/gpu-carry/nccl     libnccl.so.2 from build/nccl, which bench/gpu/build_nccl.sh builds if it is not there
# bench/gpu/all.sh installs from there what the machine's Python does not have.
#
# PYTHON: of the version that the machine has; by default a 3.12 that is found here, or that uv installs in build.
# NCCL: the repository to build NCCL from, and a revision; "none": without. ARCHITECTURES: as PC_CUDA_ARCHITECTURES
# (90-real). MOST_MIB: maximum total size (48).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

carry=$PWD/build/gpu-carry
rm -rf "$carry"
mkdir -p "$carry"

# One that has pip: what is called python3.12 may be a shim that only fails.
find_python() {
  local each
  for each in "$@"; do
    "$each" -m pip --version >/dev/null 2>&1 && { echo "$each"; return; }
  done
  python3 -m venv build/gpu-uv
  build/gpu-uv/bin/pip install --disable-pip-version-check --quiet uv
  build/gpu-uv/bin/uv venv --quiet --clear --seed --python 3.12 build/gpu-python
  echo build/gpu-python/bin/python
}
python=${1:-$(find_python python3.12 ~/.pyenv/versions/3.12.*/bin/python3.12)}
pip=("$python" -m pip --disable-pip-version-check --quiet)
{ git rev-parse HEAD; git status --porcelain -uno | sed 's/^/changed: /'; } >"$carry/commit"

PC_CUDA=ON PC_CUDA_ARCHITECTURES=${ARCHITECTURES:-90-real} "${pip[@]}" wheel --no-deps --wheel-dir "$carry/wheels" .
download=("${pip[@]}" download --only-binary=:all:)
# With all that these need in turn, but for NumPy, of which the machine has its own.
"${download[@]}" --dest "$carry/wheels" "$carry"/wheels/pycollective-*.whl scikit-build-core 'pybind11>=3.1,<3.2' \
  setuptools-scm pytest pytest-timeout pytest-xdist pytest-benchmark hypothesis cloudpickle array-api-strict jsonschema
rm -f "$carry"/wheels/numpy-*.whl
"${download[@]}" --dest "$carry/numpy" --no-deps 'numpy<2.5'
library=build/nccl/build/lib/libnccl.so.2
with="no NCCL: that of the machine is used"
if [[ ${NCCL:-} != none ]]; then
  # shellcheck disable=SC2086  # NCCL is words
  [[ -e $library ]] || bench/gpu/build_nccl.sh ${NCCL:-}
  mkdir -p "$carry/nccl"
  cp -L "$library" "$carry/nccl/libnccl.so.2"
  strip --strip-unneeded "$carry/nccl/libnccl.so.2"
  with="NCCL $(basename "$(realpath $library)" | cut -d. -f3-)"
fi
size=$(du -sm "$carry" | cut -f1)
if ((size > ${MOST_MIB:-48})); then
  echo "$carry has $size MiB, more than ${MOST_MIB:-48}" >&2
  exit 1
fi
echo "ready: $carry, $size MiB, commit $(head -1 "$carry/commit" | cut -c1-12)$(sed -n '2s/.*/ (changed)/p' "$carry/commit")," \
  "$("$python" -V) and ${ARCHITECTURES:-90-real}, $(find "$carry/wheels" -name '*.whl' | wc -l) wheels, $with"
