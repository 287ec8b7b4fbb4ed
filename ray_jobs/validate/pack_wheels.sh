#!/bin/bash
# Packs what requirements/gpu.lock installs, for a machine without a package index, in parts of 57 MiB.
#
#   ray_jobs/validate/pack_wheels.sh PARTS [PYTHON] [HAVE]
#
# PARTS is the folder to write to; PYTHON the version of the other machine's Python, as 3.12; HAVE the output of `pip
# list --format=freeze` there: what it lists, at any version, is not packed. WHEELS (build/wheels) is where `make
# flash-attn` has left its wheels, which go along if they are for that Python.
# There, with all parts in one folder:
#
#   cat PARTS/wheels.tar.* | tar -xf - -C /tmp && pip install --no-index --no-deps --target /tmp/site /tmp/wheels/*.whl
#   PYTHONPATH=/tmp/site:. python3 -m meds_openrlhf.cli.main doctor
#
# PARTS/SHA256SUMS has the parts' checksums, PARTS/missing.txt what could not be packed. From the environment also: LOCK,
# and PIP (python3 -m pip), whose index and settings are used.
set -euo pipefail

[[ $# -ge 1 && $# -le 3 ]] || { echo "usage: $0 PARTS [PYTHON] [HAVE]" >&2; exit 2; }
parts=$1 python=${2:-3.11} have=${3:-/dev/null}
here=$(cd "$(dirname "$0")/../.." && pwd)
lock=${LOCK:-$here/requirements/gpu.lock}
read -ra pip <<<"${PIP:-python3 -m pip}"
[[ -r $lock && -r $have ]] || { echo "$0: $lock or $have cannot be read" >&2; exit 2; }
mkdir -p "$parts/wheels"
: >"$parts/missing.txt"

for name in flash_attn deepspeed; do
    cp "${WHEELS:-$here/build/wheels}/$name"-*-"cp${python//./}"-*.whl "$parts/wheels" 2>/dev/null ||
        echo "$name, compiled" >>"$parts/missing.txt"
done

# A name is the same with -, _ and . in it, and in any case.
names() { sed -E 's/[[ ;=].*//; s/[-_.]+/-/g' "$@" | tr '[:upper:]' '[:lower:]'; }
there=$(grep -v '^#' "$have" | names || true)

platforms=(--platform manylinux1_x86_64 --platform manylinux2010_x86_64 --platform manylinux2014_x86_64)
for glibc in {5..35}; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
while read -r pin; do
    name=$(names <<<"$pin")
    grep -qxF "$name" <<<"$there" && continue
    compgen -G "$parts/wheels/$name-*" >/dev/null && continue
    "${pip[@]}" download --quiet --no-deps --only-binary=:all: --python-version "$python" \
        "${platforms[@]}" --dest "$parts/wheels" "$pin" 2>/dev/null ||
        # Some packages have a source distribution alone, whose wheel is for any Python unless something is compiled.
        "${pip[@]}" wheel --quiet --no-cache-dir --no-deps --wheel-dir "$parts/built" "$pin" 2>/dev/null ||
        echo "$pin" >>"$parts/missing.txt"
done < <(grep -v '^#' "$lock")
for wheel in "$parts"/built/*.whl; do
    case $wheel in
        *-none-any.whl) mv "$wheel" "$parts/wheels" ;;
        *.whl) [[ ! -e $wheel ]] || basename "$wheel" >>"$parts/missing.txt" ;;  # of this machine's Python
    esac
done
rm -rf "$parts/built"

tar -C "$parts" -cf - wheels | split -b 57M -d -a 3 - "$parts/wheels.tar."
(cd "$parts" && sha256sum wheels.tar.* >SHA256SUMS)
echo "$(find "$parts/wheels" -name '*.whl' | wc -l) wheels in $(wc -l <"$parts/SHA256SUMS") parts;" \
    "not packed: $(paste -sd, "$parts/missing.txt")"
rm -r "$parts/wheels"
