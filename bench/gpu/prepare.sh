#!/usr/bin/env bash
# Before GPU time: collects what a machine without network and with little time needs in build/gpu-carry (git-ignored).
#
#   bench/gpu/prepare.sh [PYTHON]
#
#   build/gpu-carry/wheels   pycollective for this Python with its GPU part for ARCHITECTURES only, and the dependencies
#                            of the package, its build and its GPU tests that a machine may lack
#   build/gpu-carry/nccl     libnccl.so.2, if bench/gpu/build_nccl.sh has built one
# bench/gpu/all.sh installs from there what the machine's Python does not have.
#
# ARCHITECTURES: as PC_CUDA_ARCHITECTURES (90-real). MOST_MIB: maximum total size (40).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

python=${1:-python3.12}
carry=$PWD/build/gpu-carry
mkdir -p "$carry/wheels"
rm -f "$carry"/wheels/pycollective-*.whl
{ git rev-parse HEAD; git status --porcelain -uno | sed 's/^/changed: /'; } >"$carry/commit"

PC_CUDA=ON PC_CUDA_ARCHITECTURES=${ARCHITECTURES:-90-real} "$python" -m pip wheel --disable-pip-version-check --quiet \
  --no-deps --wheel-dir "$carry/wheels" .
# With all that these need in turn, but for NumPy, of which the machine has its own.
"$python" -m pip download --disable-pip-version-check --quiet --only-binary=:all: --dest "$carry/wheels" \
  "$carry"/wheels/pycollective-*.whl scikit-build-core 'pybind11>=3.1,<3.2' setuptools-scm pytest pytest-timeout \
  pytest-xdist pytest-benchmark hypothesis cloudpickle array-api-strict jsonschema
rm -f "$carry"/wheels/numpy-*.whl
library=build/nccl/build/lib/libnccl.so.2
if [[ -e $library ]]; then
  mkdir -p "$carry/nccl"
  cp -L "$library" "$carry/nccl/libnccl.so.2"
  strip --strip-unneeded "$carry/nccl/libnccl.so.2"
else
  echo "no NCCL in build/nccl: that of the machine is used (bench/gpu/build_nccl.sh builds one)" >&2
fi
size=$(du -sm "$carry" | cut -f1)
echo "$carry: $size MiB"
if ((size > ${MOST_MIB:-40})); then
  echo "that is more than ${MOST_MIB:-40} MiB" >&2
  exit 1
fi
