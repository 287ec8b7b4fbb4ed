#!/bin/bash
# usage: submit.sh [--working-dir FOLDER] [--env-file FILE] [--tries N] CONFIG [--section.key value ...]
#
# `meds train` as a job on a Ray cluster, with Ray's own `ray job submit`, followed to its end:
#
#   export RAY_API_SERVER_ADDRESS=http://head:8265  # the head's dashboard
#   ray_jobs/submit.sh --tries 4 configs/qwen2.5-math-7b/meds.yaml --meds.run_dir /shared/runs/my-run
#
# The run is sized to the nodes that Ray has when the job starts. While nodes still join, state them: --cluster 4x8 after
# CONFIG; the run waits for them, and a resumed one that has lost a node goes on with those that are left.
#
# --working-dir FOLDER  the job runs in a copy of this folder (the current one), without what runtime_env.yaml excludes;
#                       CONFIG is a path in it
# --env-file FILE       the job's environment as lines NAME=VALUE, without quotes. Keys are refused: Ray shows a job's
#                       environment to everyone who reaches the dashboard. Set them in the environment of `ray start`.
# --tries N             after a failure, submit the job again with --resume, N tries in all (1). Not after `ray job stop`
#                       or exit codes 2 (refused) and 127 (the head does not find `meds`), which a retry does not change.
#
# Ctrl-C leaves the job running. The exit code is that of `meds train`, or 143 for a job that was stopped.
set -euo pipefail

say() { echo "submit.sh: $1" >&2; }
refuse() { say "$1"; exit 2; }

folder=. variables=/dev/null tries=1
while [[ ${1:-} == --* && $# -gt 1 ]]; do
    case $1 in
        --working-dir) folder=$2 ;;
        --env-file) variables=$2 ;;
        --tries) tries=$2 ;;
        *) refuse "$1: not an option; settings of the run follow CONFIG" ;;
    esac
    shift 2
done
[[ $# -gt 0 && $1 != --* ]] || { sed -n '2,/^set/s/^# \?//p' "$0" >&2; exit 2; }
[[ -n ${RAY_API_SERVER_ADDRESS:-} ]] || refuse "RAY_API_SERVER_ADDRESS is not set; set it to the head's dashboard, e.g. http://head:8265"
[[ $tries =~ ^[1-9][0-9]*$ ]] || refuse "--tries=$tries: must be a whole number of at least 1"
[[ -r $variables ]] || refuse "--env-file=$variables: cannot be read"
[[ $1 == /* || -f $folder/$1 ]] || refuse "CONFIG=$1: not a file in the working folder $folder, of which the job gets a copy"
for word in "$@"; do
    [[ $word != *[[:space:]\"]* ]] || refuse "$word: Ray passes on no spaces or double quotes; set it in CONFIG"
done
# Names the first word that is a credential, and fails.
credential_in() { printf '%s\0' "$@" | python3 -I "$(dirname "$0")/../meds_openrlhf/config/credentials.py"; }
found=$(credential_in "$@") ||
    refuse "$found is a key, which Ray would show to everyone; set it in the nodes' environment, e.g. as WANDB_API_KEY"
words=("${@@Q}")  # for the shell on the head

runtime_env=$(mktemp)  # readable by this user only
trap 'rm -f "$runtime_env"' EXIT
cat "$(dirname "$0")/runtime_env.yaml" >"$runtime_env"  # ends inside env_vars
quote=\' lines=()
while IFS= read -r line || [[ -n $line ]]; do
    [[ -n $line && $line != \#* ]] || continue
    [[ $line =~ ^([A-Za-z_][A-Za-z_0-9]*)=(.*)$ ]] || refuse "--env-file=$variables: a line is not NAME=VALUE"
    name=${BASH_REMATCH[1]} value=${BASH_REMATCH[2]} lines+=("$line")
    printf "  %s: '%s'\n" "$name" "${value//$quote/$quote$quote}" >>"$runtime_env"
done <"$variables"
found=$(credential_in "${lines[@]}") ||
    refuse "--env-file=$variables: $found is a key, which Ray would show to everyone; set it in the nodes' environment"

first=meds-$(date +%Y%m%d-%H%M%S)
resume=()
for ((try = 1; ; try++)); do
    job=$first-$try
    trap 'say "$job is left running; \`ray job logs --follow $job\` shows it again, \`ray job stop $job\` stops it"; exit 130' INT
    ray job submit --no-wait --submission-id "$job" --working-dir "$folder" --runtime-env "$runtime_env" -- \
        meds train "${words[@]}" "${resume[@]}" || refuse "$job was not submitted"
    # A connection that breaks ends only the watching. A head that was restarted does not know the job, which is lost.
    while ray job logs --follow "$job" || true; do
        until ended=$(ray job status "$job" 2>&1) || [[ $ended == *"does not exist"* ]]; do
            say "the head does not answer; asking again in 10 s"
            sleep 10
        done
        [[ $ended == *"Status for job"* ]] || break
    done
    case $ended in
        *"Job '$job' succeeded"*) exit 0 ;;
        *"Job '$job' was stopped"*) exit 143 ;;
    esac
    code=1
    [[ ! $ended =~ "command failed with exit code "(-?[0-9]+) ]] || code=${BASH_REMATCH[1]}
    say "$job failed with exit code $code (try $try of $tries)"
    ((try < tries && code != 2 && code != 127)) || exit $((code < 0 ? 128 - code : code))
    trap 'say "not submitted again; the same command with --resume continues the run"; exit 130' INT
    sleep 15  # for what the job leaves on its nodes to end
    resume=(--resume)
done
