#!/bin/sh
# Make .venv and install one set of packages into it: setup.sh serve | test | full
# Every version is the one in constraints.txt; setup.sh constraints writes that file anew, from an environment of its own.
# Quick when nothing changed. pip's own settings hold (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, ...).
set -eu
cd "$(dirname "$0")/.."
set_name=$1
python=${PYTHON:-python3}
log=.slotwise/setup.log
venv=.venv
pinned="--constraint constraints.txt"
if [ "$set_name" = constraints ]; then
    venv=.slotwise/constraints-venv
    pinned=
    rm -rf "$venv"
fi
stamp=$venv/.slotwise-$set_name

fail() { printf 'error: %s\nhint: %s\n' "$1" "$2" >&2; exit 1; }

wanted=$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum)
[ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && exit 0

command -v "$python" >/dev/null || fail "there is no $python" "install Python 3.11 or newer (apt-get install python3), or set PYTHON"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old" "install Python 3.11 or newer and call: make PYTHON=python3.11 ..."
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "Python's venv module is missing" "apt-get install $(basename "$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')")-venv"

case $set_name in
    serve) extras=torchserve,onnx,images,digits,efficientnet ;;
    test) extras=torch,torchserve,mms,onnx,openvino,images,text,tune,digits,efficientnet,otel,tables,s3,test,dev ;;
    full) extras=all,test,dev ;;
    constraints) extras=all,test,dev,exporters ;;
    *) fail "there is no set $set_name" "sets: serve, test, full, constraints" ;;
esac

mkdir -p .slotwise
"$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv "$venv" # also where pip is missing: one half made
pip="$venv/bin/python -m pip install --disable-pip-version-check --quiet $pinned"

step() { # step TEXT COMMAND...: one line a step, the output goes to the log
    text=$1; shift
    printf '  %s ... ' "$text"
    began=$(date +%s)
    job=
    trap 'kill $job 2>/dev/null || true; printf "stopped\n" >&2; exit 130' INT TERM HUP # the job hears no Ctrl-C itself
    "$@" >>"$log" 2>&1 &
    job=$!
    while kill -0 "$job" 2>/dev/null; do
        if [ -t 1 ]; then printf '\r  %s ... %ds ' "$text" "$(($(date +%s) - began))"; fi
        sleep 1
    done
    if ! wait "$job"; then
        printf 'failed\n'
        tail -n 15 "$log" >&2
        fail "installing stopped at: $text" "the whole output is in $log; behind a proxy or mirror, set PIP_INDEX_URL"
    fi
    trap - INT TERM HUP
    if [ -t 1 ]; then printf '\r  %s ... ' "$text"; fi
    printf 'done in %d s\n' "$(($(date +%s) - began))"
}

: >"$log"
echo "Installing what '$set_name' needs into $venv"
case $set_name in
    serve) echo "(downloads about 0.5 GB with a CPU build of torch, 3 GB with torch's default Linux build; see README)" ;;
    *) echo "(downloads about 1 GB with a CPU build of torch, 3.5 GB with torch's default Linux build; see README)" ;;
esac
# torch comes first and exactly, so that nothing that is installed later pulls another build of it
step "torch 2.13.0" $pip torch==2.13.0
if [ "$set_name" != serve ]; then
    step "torchvision 0.28.0" $pip torchvision==0.28.0 torch==2.13.0
fi
step "slotwise and its libraries ($extras)" $pip -e ".[$extras]" torch==2.13.0
if [ "$set_name" != serve ]; then
    # one of its requirements, its own archiver, overwrites TorchServe's; the server imports none of them
    step "Multi Model Server 1.1.11" $pip --no-deps multi-model-server==1.1.11
fi
if [ "$set_name" = full ] || [ "$set_name" = constraints ]; then
    # its requirements are those of its Python API and numpy 1; only its tritonserver is used. Its client wants an older protobuf.
    step "Triton 2.51 (nvidia-pytriton 0.7.0)" $pip --no-deps nvidia-pytriton==0.7.0
    step "Triton's own client" $pip --no-deps tritonclient==2.73.0 grpcio python-rapidjson geventhttpclient gevent brotli \
        zope.event zope.interface
fi
if [ "$set_name" = full ]; then
    step "Helm's library, for its chart" $pip --no-deps helm-python-sdk==0.2.2
    # it wants older versions of what others here need: psutil, protobuf, grpcio
    kserve_environment() {
        [ -x .slotwise/kserve/bin/python ] || "$python" -m venv .slotwise/kserve
        .slotwise/kserve/bin/python -m pip install --disable-pip-version-check --quiet kserve==0.21.0
    }
    (step "KServe's own client, in .slotwise/kserve" kserve_environment) || echo "  (its test is skipped: all else goes on)"
fi
if [ "$set_name" = constraints ]; then
    # without the build's own suffix (+cpu): which build of torch it is, whoever installs decides
    "$venv/bin/python" -m pip list --disable-pip-version-check --format=freeze --exclude slotwise --exclude pip |
        sed 's/+.*//' | { echo "# The versions that are tested together; written by \`make constraints\`."; sort -f; } >constraints.partial
    mv constraints.partial constraints.txt
    rm -rf "$venv"
    exit 0
fi
echo "$wanted" >"$stamp"
[ "$set_name" = serve ] || echo "$wanted" >.venv/.slotwise-serve
[ "$set_name" = full ] && echo "$wanted" >.venv/.slotwise-test || true
