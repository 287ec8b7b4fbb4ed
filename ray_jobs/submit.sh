#!/bin/bash
# `meds train` as a Ray job, with Ray's own command. Run it in the folder that goes along:
#
#   RAY_API_SERVER_ADDRESS=http://head:8265 ray_jobs/submit.sh configs/qwen2.5-math-7b/meds.yaml \
#       --meds.run_dir /shared/runs/my-run
#
# `meds submit` takes the same words, checks them first, and can go on after a failure (--retries).
set -euo pipefail

: "${RAY_API_SERVER_ADDRESS:?set it to the dashboard of the head, e.g. http://head:8265}"
exec ray job submit --working-dir . --runtime-env "$(dirname "$0")/runtime_env.yaml" -- meds train "$@"
