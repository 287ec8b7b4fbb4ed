#!/bin/bash
#SBATCH --job-name=meds
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=96
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@1200
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.log
#
# A Ray cluster on the nodes of this allocation, and `meds train` on it. With the environment activated that holds
# `meds` and `ray`, on storage that every node sees:
#
#   sbatch --nodes=4 ray_jobs/slurm.sh configs/qwen2.5-math-7b/meds.yaml --meds.run_dir /shared/runs/my-run
#
# 20 minutes before the time limit the run saves a checkpoint and the job is queued again; it goes on from there. After
# a failure it is queued again as well, MEDS_RETRIES times in all, but not after a mistake in the settings. A step that
# is not finished 18 minutes later counts as a failure: for longer steps, raise the 1200 above and REQUEUE_SECONDS.
# To end it with a checkpoint: scancel --batch --signal=TERM JOB.
#
# From the environment, all optional: MEDS_RETRIES (3), REQUEUE_SECONDS (1080), RAY_PORT (6379), NODE_SECONDS (600) to
# wait for all nodes,
# HEAD_ADDRESS (the first of the head's `hostname -I`), RAY_START_ARGS for every `ray start`, RAY_HEAD_ARGS for that of
# the head, SRUN_ARGS for every srun, e.g. "--container-image=/shared/meds.sqsh --container-mounts=/shared". Keys such as
# WANDB_API_KEY reach all nodes from the environment of sbatch.
set -euo pipefail

[[ $# -gt 0 ]] || { echo "usage: sbatch $0 CONFIG [--section.key value ...]" >&2; exit 2; }

# From the first moment on: untrapped, a signal would end this script. After a trap, only backquotes: while bash 5.2 looks
# for the end of $(...) or <(...), it runs the trap of a signal that has just come as a part of it, and ends in error.
# shellcheck disable=SC2006
stopped_by=nobody
driver=
told=  # the driver, that it shall stop
# shellcheck disable=SC2329  # the traps call it
stop() {
    stopped_by=$1
    echo "stopping: $2"
    # srun passes SIGUSR1 on to `meds train`; on SIGTERM it would kill it.
    [[ -z $driver ]] || { told=yes; kill -USR1 "$driver" 2>/dev/null || true; }
}
trap 'stop limit "the time limit is near"' USR1
trap 'stop user "SIGTERM"' TERM

read -ra ray_start_args <<<"${RAY_START_ARGS:-}"
read -ra ray_head_args <<<"${RAY_HEAD_ARGS:-}"
read -ra srun_args <<<"${SRUN_ARGS:-}"
# Ray and the driver meet in one container of each node: a driver in another one would not see Ray's sockets in /tmp.
if [[ ${SRUN_ARGS:-} == *--container-image* && ${SRUN_ARGS:-} != *--container-name* ]]; then
    srun_args+=("--container-name=meds-$SLURM_JOB_ID")
fi
# shellcheck disable=SC2207
nodes=(`scontrol show hostnames "$SLURM_JOB_NODELIST"`)
head=${nodes[0]}
port=${RAY_PORT:-6379}
# On each node's own disk: in a shared home, all processes of all nodes would compile into the same folder.
cache=/tmp/meds-${USER:-$UID}
export VLLM_CACHE_ROOT=${VLLM_CACHE_ROOT:-$cache/vllm} TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$cache/triton}
export TORCHINDUCTOR_CACHE_DIR=${TORCHINDUCTOR_CACHE_DIR:-$cache/inductor}
# srun does not take these over from sbatch by itself.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}

# Beside what runs on a node already. A plain command, so that $! is srun itself and a signal reaches its task.
step=(srun --nodes=1 --ntasks=1 --overlap "${srun_args[@]}")

# Not `hostname --ip-address`, which on many machines is one that only they themselves reach.
address=${HEAD_ADDRESS:-}
# shellcheck disable=SC2016
[[ -n $address ]] || address=`"${step[@]}" --nodelist="$head" hostname -I | awk '{print $1}'`
address+=:$port
echo "head $head at $address, ${#nodes[@]} nodes, start $((${SLURM_RESTART_COUNT:-0} + 1))"

# --- the cluster -------------------------------------------------------------------------------------------------
# Ray asks for the job's token. All nodes read it from the run folder, also in containers.
RAY_AUTH_TOKEN_PATH=`"${step[@]}" --nodelist="$head" python3 -m meds_openrlhf.runtime.ray_token "$@"` || exit
export RAY_AUTH_TOKEN_PATH RAY_AUTH_MODE=token
background=()
trap 'kill "${background[@]}" 2>/dev/null || true; rm -f "$RAY_AUTH_TOKEN_PATH"' EXIT

# Without a port of that agent, the head ends if its own node, on a cold file system, takes over 30 s to come in.
"${step[@]}" --nodelist="$head" ray start --head --block --port="$port" --node-ip-address="${address%:*}" \
    --runtime-env-agent-port=$((port + 1)) --disable-usage-stats "${ray_start_args[@]}" "${ray_head_args[@]}" &
background+=($!)
for ((waited = 0; waited < 300; waited++)); do
    (: <"/dev/tcp/${address/://}") 2>/dev/null && break
    sleep 1
done
declare -A workers
start_worker() {
    "${step[@]}" --nodelist="$1" ray start --block --address="$address" --disable-usage-stats \
        "${ray_start_args[@]}" &
    workers[$1]=$!
    background+=($!)
}
nodes_in() {
    "${step[@]}" --nodelist="$head" python3 -c '
import sys, ray
ray.init(sys.argv[1], logging_level="ERROR", log_to_driver=False)
print(sum(node["Alive"] for node in ray.nodes()))' "$address" 2>/dev/null || true
}
wait_for_nodes() {
    local node deadline=$((SECONDS + ${NODE_SECONDS:-600}))
    for node in "${nodes[@]:1}"; do start_worker "$node"; done
    until [[ `nodes_in` == "${#nodes[@]}" ]]; do
        if ((SECONDS >= deadline)); then
            echo "not all nodes came in"
            return 1
        fi
        for node in "${!workers[@]}"; do  # Ray gives up on a node that is slow to start
            kill -0 "${workers[$node]}" 2>/dev/null || start_worker "$node"
        done
        sleep 2
    done
    echo "all ${#nodes[@]} nodes are in"
}

# --- the run -----------------------------------------------------------------------------------------------------
queue_again() {
    echo "queued again: $1"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
# A line for each failure: Slurm's own count rises at the time limit and with lost nodes as well.
failures=${SLURM_SUBMIT_DIR:-.}/meds-$SLURM_JOB_ID.failures
retry() {
    echo "$1" >>"$failures"
    local failed
    failed=`wc -l <"$failures"`
    [[ $failed -gt ${MEDS_RETRIES:-3} ]] || queue_again "$1, retry $failed of ${MEDS_RETRIES:-3}"
}
# At the limit, Slurm would end the job for good.
requeue_at_last() {
    trap 'kill $!; exit' TERM
    sleep "${REQUEUE_SECONDS:-1080}" &
    wait $!
    retry "a step longer than the notice"
}
train() {
    local resume=() timer=
    [[ ${SLURM_RESTART_COUNT:-0} -eq 0 ]] || resume=(--resume)
    RAY_ADDRESS=$address "${step[@]}" --nodelist="$head" meds train "$@" "${resume[@]}" &
    driver=$!
    # A signal that came in the moment before found no driver to tell.
    [[ $stopped_by == nobody || -n $told ]] || kill -USR1 "$driver" 2>/dev/null || true
    # A trapped signal ends `wait` early: ask again until the driver has ended.
    while kill -0 "$driver" 2>/dev/null; do
        [[ $stopped_by != limit || -n $timer ]] || { requeue_at_last & timer=$!; background+=("$timer"); }
        wait "$driver" || true
    done
    code=0
    wait "$driver" || code=$?
}

code=1
if wait_for_nodes && [[ $stopped_by == nobody ]]; then
    train "$@"
fi
echo "meds train: exit code $code"

end() {
    rm -f "$failures"
    exit "$code"
}
case $code in
    0 | 2 | 130) end ;;  # done, a mistake in the settings, interrupted by hand
esac
[[ $stopped_by != user ]] || end
# A limit too short for the run to start would else queue it again for ever.
[[ $stopped_by != limit || -z $driver ]] || queue_again "the time limit was near"
retry "exit code $code"
end
