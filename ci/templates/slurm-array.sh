#!/usr/bin/env bash
# ggml-parity as an array of Slurm jobs, one shard each, and a job that merges them when all have ended:
#
#     sbatch --array=0-3 ci/templates/slurm-array.sh
#
# Put partition, device and folders in here. The last job is red when a cell is, when a shard was lost, and when nothing
# was compared; it must not depend on success, for a red shard is what its report is for.
#SBATCH --job-name=parity
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --output=parity-%A-%a.log

set -euo pipefail

GGML=${GGML:-/opt/ggml}
DEVICE=${DEVICE:-CUDA0}
# A folder that all nodes see, new for every array.
REPORTS=${REPORTS:-$PWD/parity-$SLURM_ARRAY_JOB_ID}

# The first of the array asks for the merge, once for all.
if ((SLURM_ARRAY_TASK_ID == SLURM_ARRAY_TASK_MIN)); then
    sbatch --job-name=parity-merge --dependency="afterany:$SLURM_ARRAY_JOB_ID" --output=parity-merge-%j.log \
        --wrap="ggml-parity merge '$REPORTS' --out '$REPORTS/merged'"
fi

SHARD=$((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN + 1))/$SLURM_ARRAY_TASK_COUNT
OUT=$REPORTS/shard-$SLURM_ARRAY_TASK_ID
exec ggml-parity run --ggml "$GGML" --device "$DEVICE" --threads "$SLURM_CPUS_PER_TASK" --shard "$SHARD" --out "$OUT"
