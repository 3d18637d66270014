#!/usr/bin/env bash
# Builds NCCL 2.30 or newer, which lets ranks share a GPU, for one GPU architecture and only the measured functions:
# minutes and megabytes instead of an hour and hundreds of them. Output in build/nccl (git-ignored).
#
#   bench/gpu/build_nccl.sh [SOURCE [REVISION]]
#
# SOURCE: a repository to clone (https://github.com/NVIDIA/nccl.git). REVISION: a tag or commit of it; by default its
# default branch. ARCHITECTURE: compute capability without the point (90). JOBS: number of parallel compilers (2).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

source=${1:-https://github.com/NVIDIA/nccl.git}
folder=$PWD/build/nccl
if [[ ! -d $folder/.git ]]; then
  git clone --quiet "$source" "$folder"
fi
if [[ $# -gt 1 ]]; then
  git -C "$folder" checkout --quiet "$2"
fi
major=$(sed -n 's/^NCCL_MAJOR *:= *//p' "$folder/makefiles/version.mk")
minor=$(sed -n 's/^NCCL_MINOR *:= *//p' "$folder/makefiles/version.mk")
if ((major < 2 || (major == 2 && minor < 30))); then
  echo "NCCL $major.$minor cannot have several ranks on one GPU; 2.30 or newer can" >&2
  exit 1
fi
number=${ARCHITECTURE:-90}
# As nvcc reports it: the one on the PATH may be a script that calls another.
cuda=$(realpath "$(nvcc --dryrun -c -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')")
nice -n 19 make -C "$folder" -j"${JOBS:-2}" src.build CUDA_HOME="$cuda" \
  NVCC_GENCODE="-gencode=arch=compute_$number,code=sm_$number" \
  ONLY_FUNCS="AllReduce Sum (f32|bf16) * *|Broadcast * *|SendRecv"
ls -lL "$folder/build/lib/libnccl.so.2"
